"""Findings as plain text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telescope.doctor.finding import SEVERITIES, Finding, Place
from telescope.doctor.order import root_causes
from telescope.doctor.words import Lang, name_of, ui
from telescope.explain.text import visible, wrap

WIDTH = 80
_PLACES = 3
"""Tokens shown of a finding."""
_SIGNS = {"serious": "✗", "warning": "!", "note": "·"}


def lines(run: Path, found: Sequence[Finding], steps: int, lang: Lang) -> list[str]:
    """All findings, the worst first."""
    if not found:
        return wrap(ui("healthy", lang, steps=steps), WIDTH)
    counts = [
        ui(f"count_{severity}", lang, n=n, s="" if n == 1 else "s")
        for severity in SEVERITIES
        if (n := sum(finding.severity == severity for finding in found))
    ]
    out = wrap(ui("found", lang, run=run, n=ui("and", lang).join(counts), steps=steps), WIDTH)
    for finding in found:
        out += ["", *_finding(finding, root_causes(finding, found), lang)]
    if any(finding.places for finding in found):
        out += ["", *wrap(ui("look", lang, run=run), WIDTH)]
    return out


def live_line(finding: Finding, step: int, lang: Lang = "en") -> str:
    """One line for a problem that starts during training."""
    return ui("live", lang, step=step, what=finding.said("what", lang), id=finding.id)


def _finding(finding: Finding, causes: Sequence[str], lang: Lang) -> list[str]:
    since = ui("since", lang, step=finding.since)
    if finding.since <= 1:
        since = ui("at_once", lang)
    sure = ui("sure", lang, share=f"{finding.confidence:.2f}")
    head = f"{_SIGNS[finding.severity]} {name_of(finding.id, lang)} ({finding.id})"
    level = ui(finding.severity, lang)
    out = [head, f"  {level} · {since} · {sure}"]
    out += _indented(visible(finding.said("what", lang), spaces=False))
    if causes:
        out += _indented(ui("caused_by", lang, ids=ui("and", lang).join(causes)))
    labelled = [("evidence", _place(place, lang)) for place in finding.places[:_PLACES]]
    labelled += [(part, finding.said(part, lang)) for part in ("why", "remedy")]
    if finding.change:
        tried = " ".join(f"--{key} {_shown(value)}" for key, value in finding.change.items())
        labelled.append(("try", tried))
    for label, text in labelled:
        out += _indented(f"{ui(label, lang)}{ui('colon', lang)}{text}")
    return out


def _place(place: Place, lang: Lang) -> str:
    key = "response" if place.token is None else "place"
    where = ui(key, lang, step=place.step, sample=place.sample, token=place.token)
    text = visible(" ".join(place.text.split()), spaces=False)
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in place.numbers.items())
    return " ".join(
        part for part in (where, ui("quoted", lang, text=text) if text else "", numbers) if part
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in wrap(text, WIDTH - 2)]
