"""Checks and their registration.

A check is a function of the run's curves, or of its curves and its ledger, that returns a `Sign` or
None. The decorator states what it is about; its words are in words.toml under its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from telescope.doctor.curves import Curves
from telescope.doctor.finding import Finding, Place, Severity
from telescope.doctor.recorded import Recorded

Family = Literal[
    "laws",
    "sampler",
    "data",
    "reward",
    "groups",
    "length",
    "critic",
    "whitening",
    "learning_rate",
    "entropy",
    "kl",
    "outcome",
]
FAMILIES: tuple[Family, ...] = Family.__args__  # type: ignore[attr-defined]
"""In the order in which one thing leads to another: numbers that are wrong, what is sampled, what
is paid for it, how credit is made of it, how the weights move, and what comes of it."""


@dataclass(frozen=True)
class Sign:
    """What a check saw. What is not given is as the check is registered."""

    since: int
    numbers: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 0.8
    severity: Severity | None = None
    variant: str = ""
    places: tuple[Place, ...] = ()
    change: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A registered check."""

    id: str
    family: Family
    severity: Severity
    explains: tuple[str, ...]
    """Findings that this one leads to, so that they are not causes of their own."""
    charts: tuple[str, ...]
    settings: tuple[str, ...]
    of_curves: Callable[[Curves], Sign | None] | None = None
    of_ledger: Callable[[Curves, Recorded], Sign | None] | None = None

    def finding(self, sign: Sign) -> Finding:
        return Finding(
            id=self.id,
            severity=sign.severity or self.severity,
            since=sign.since,
            numbers=sign.numbers,
            confidence=sign.confidence,
            variant=sign.variant,
            charts=self.charts,
            places=sign.places,
            settings=self.settings,
            change=sign.change,
        )


CHECKS: dict[str, Check] = {}
"""Every check by its id. The modules of telescope.doctor.checks fill it."""
WITNESSES: dict[str, Callable[[Finding, Recorded], tuple[Place, ...]]] = {}
"""Finding -> the function that looks up tokens or responses which show it."""


def curve_check(
    id: str,
    family: Family,
    severity: Severity,
    *,
    charts: tuple[str, ...],
    settings: tuple[str, ...] = (),
    explains: tuple[str, ...] = (),
) -> Callable[[Callable[[Curves], Sign | None]], Callable[[Curves], Sign | None]]:
    """Registers a check that reads metrics only: cheap, and run during training."""

    def register(function: Callable[[Curves], Sign | None]) -> Callable[[Curves], Sign | None]:
        _add(Check(id, family, severity, explains, charts, settings, of_curves=function))
        return function

    return register


LedgerFunction = Callable[[Curves, Recorded], Sign | None]


def ledger_check(
    id: str,
    family: Family,
    severity: Severity,
    *,
    charts: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
    explains: tuple[str, ...] = (),
) -> Callable[[LedgerFunction], LedgerFunction]:
    """Registers a check that reads tokens."""

    def register(function: LedgerFunction) -> LedgerFunction:
        _add(Check(id, family, severity, explains, charts, settings, of_ledger=function))
        return function

    return register


def ledger_sign(id: str) -> Callable[[LedgerFunction], LedgerFunction]:
    """Registers a second way to see a finding: from tokens, where the curves do not show it."""

    def register(function: LedgerFunction) -> LedgerFunction:
        CHECKS[id] = replace(CHECKS[id], of_ledger=function)
        return function

    return register


def _add(check: Check) -> None:
    assert check.id not in CHECKS, f"two checks are called {check.id}"
    CHECKS[check.id] = check


Witness = Callable[[Finding, Recorded], tuple[Place, ...]]


def witness(*ids: str) -> Callable[[Witness], Witness]:
    """Registers a function that finds tokens or responses for findings of the curves."""

    def register(function: Witness) -> Witness:
        for id in ids:
            WITNESSES[id] = function
        return function

    return register
