"""A finding: what is wrong with a run, since when, and the numbers that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

from telescope.doctor.words import Lang, said

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note")
"""The worst first."""


@dataclass(frozen=True)
class Place:
    """A response of the ledger, or one of its tokens, that shows a finding."""

    step: int
    sample: int
    token: int | None = None
    text: str = ""
    """The token, or the beginning of the response."""
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def href(self) -> str:
        """Where the page shows it."""
        address: dict[str, Any] = {"view": "samples", "step": self.step, "sample": self.sample}
        if self.token is not None:
            address["token"] = self.token
        return f"#{urlencode(address)}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "href": self.href}


@dataclass(frozen=True)
class Finding:
    """What a check found. Its sentences are those of words.toml, with `numbers` filled in."""

    id: str
    severity: Severity
    since: int
    numbers: Mapping[str, Any]
    """What the sentences mention, by name."""
    confidence: float
    """From 0 to 1: how sure the check is that this is not chance, and has this cause."""
    variant: str = ""
    """Which of the check's sentences fits, e.g. by cause."""
    charts: tuple[str, ...] = ()
    """Metrics whose curves show it."""
    places: tuple[Place, ...] = ()
    settings: tuple[str, ...] = ()
    """Settings that the remedy is about."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """Settings with values to try, in the run's own terms."""
    caused_by: tuple[str, ...] = ()
    """Other findings of this run that explain this one."""

    def said(self, part: str, lang: Lang) -> str:
        """`what`, `why` or `remedy` in a language."""
        return said(self.id, part, lang, self.variant, self.numbers)

    @property
    def href(self) -> str:
        """Where the page shows it: a token, or the step where it began."""
        if self.places:
            return self.places[0].href
        return f"#{urlencode({'view': 'samples', 'step': self.since})}"

    def to_json(self, lang: Lang = "en") -> dict[str, Any]:
        texts = {part: self.said(part, lang) for part in ("what", "why", "remedy")}
        both = {f"{part}_{each}": self.said(part, each) for part in texts for each in ("zh", "en")}
        return {
            "id": self.id,
            "severity": self.severity,
            "since": self.since,
            "confidence": round(self.confidence, 2),
            **texts,
            **both,
            "evidence": {
                "numbers": {name: _plain(value) for name, value in self.numbers.items()},
                "charts": list(self.charts),
                "places": [place.to_json() for place in self.places],
            },
            "settings": list(self.settings),
            "change": dict(self.change),
            "caused_by": list(self.caused_by),
            "href": self.href,
        }


def _plain(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
