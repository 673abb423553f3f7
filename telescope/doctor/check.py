"""Checks and their registration.

A check is a function of the run's curves, or of its curves and its ledger, that returns a `Sign` or
None. It has the name of its finding, whose words are in words.toml. `NoSign` ends it too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec

from telescope.doctor.curves import Curves, NoSign
from telescope.doctor.finding import Finding, Place, Severity
from telescope.doctor.recorded import Recorded, RecordedStep

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


OfCurves = Callable[[Curves], Sign | None]
OfLedger = Callable[[Curves, Recorded], Sign | None]
OfStep = Callable[[Curves, RecordedStep], Sign | None]
Witness = Callable[[Finding, Recorded], tuple[Place, ...]]
"""Looks up tokens or responses that show a finding."""
Review = Callable[[Curves, Finding, Recorded], Finding]
"""Looks in the ledger at what a check of metrics found, and judges it anew."""
P = ParamSpec("P")


@dataclass(frozen=True)
class Check:
    """A registered check."""

    id: str
    family: Family
    severity: Severity
    charts: tuple[str, ...]
    settings: tuple[str, ...]
    of_curves: OfCurves | None = None
    of_ledger: OfLedger | None = None

    def finding(self, sign: Sign) -> Finding:
        seen = vars(sign) | {"severity": sign.severity or self.severity}
        return Finding(self.id, charts=self.charts, settings=self.settings, **seen)


CHECKS: dict[str, Check] = {}
"""Every check by its id. The modules of telescope.doctor.checks fill it."""
WITNESSES: dict[str, Witness] = {}
"""Those of findings of the curves, by id."""
REVIEWS: dict[str, Review] = {}
"""The same of second looks."""


def curve_check(
    family: Family,
    severity: Severity,
    *,
    charts: tuple[str, ...],
    settings: tuple[str, ...] = (),
) -> Callable[[OfCurves], OfCurves]:
    """Registers a check that reads metrics only: cheap, and run during training."""

    def register(look: OfCurves) -> OfCurves:
        _add(Check(look.__name__, family, severity, charts, settings, of_curves=look))
        return look

    return register


def ledger_check(
    family: Family,
    severity: Severity,
    *,
    charts: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
) -> Callable[[OfLedger], OfLedger]:
    """Registers a check that reads tokens."""

    def register(look: OfLedger) -> OfLedger:
        _add(Check(look.__name__, family, severity, charts, settings, of_ledger=look))
        return look

    return register


def _add(check: Check) -> None:
    assert check.id not in CHECKS, f"two checks are called {check.id}"
    CHECKS[check.id] = check


def ledger_sign(id: str) -> Callable[[OfLedger], OfLedger]:
    """Registers a further way to see a finding: from tokens, where the others do not show it."""

    def register(look: OfLedger) -> OfLedger:
        before = CHECKS[id].of_ledger
        CHECKS[id] = replace(CHECKS[id], of_ledger=_either(before, look) if before else look)
        return look

    return register


def _either(first: OfLedger, second: OfLedger) -> OfLedger:
    """A check that asks the second one where the first sees nothing."""

    def of_ledger(run: Curves, recorded: Recorded) -> Sign | None:
        return attempt(first, run, recorded) or second(run, recorded)

    return of_ledger


def first_step(look: OfStep) -> OfLedger:
    """Makes a check of one step one of the ledger: it looks until a step shows something."""

    @functools.wraps(look)
    def of_ledger(run: Curves, recorded: Recorded) -> Sign | None:
        signs = (attempt(look, run, step) for step in recorded.steps())
        return next((sign for sign in signs if sign is not None), None)

    return of_ledger


def attempt(look: Callable[P, Sign | None], *given: P.args, **named: P.kwargs) -> Sign | None:
    """What a check sees, if anything."""
    try:
        return look(*given, **named)
    except NoSign:
        return None


def sign_of(id: str, run: Curves) -> Sign | None:
    """What another check of metrics sees."""
    look = CHECKS[id].of_curves
    return attempt(look, run) if look is not None else None


def witness(*ids: str) -> Callable[[Witness], Witness]:
    """Registers a function that finds tokens or responses for findings of the curves."""

    def register(look: Witness) -> Witness:
        WITNESSES.update(dict.fromkeys(ids, look))
        return look

    return register


def review(id: str) -> Callable[[Review], Review]:
    """Registers a second look, in the ledger, at a finding of the curves."""

    def register(look: Review) -> Review:
        REVIEWS[id] = look
        return look

    return register
