"""Runs the checks over a run: all of them, or again on what has grown."""

from __future__ import annotations

import functools
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import telescope.doctor.checks  # noqa: F401 -- registers the checks
from telescope.doctor.check import CHECKS, REVIEWS, WITNESSES, Check, Sign, attempt
from telescope.doctor.curves import Curves, NoSign
from telescope.doctor.finding import Finding
from telescope.doctor.order import ordered
from telescope.doctor.recorded import Recorded
from telescope.doctor.sources.opening import Source, open_source
from telescope.errors import TelescopeError

_log = logging.getLogger("telescope")
_UNREADABLE = (LookupError, TypeError, ValueError, ArithmeticError)
"""What columns of other trainers may raise."""


def curve_findings(curves: Curves) -> list[Finding]:
    """What the checks of metrics find, unordered."""
    seen = [
        (check, attempt(check.of_curves, curves)) for check in CHECKS.values() if check.of_curves
    ]
    return [check.finding(sign) for check, sign in seen if sign is not None]


def ledger_findings(curves: Curves, recorded: Recorded) -> list[Finding]:
    """What the checks of tokens find, unordered."""
    seen = [(check, _look(check, curves, recorded)) for check in CHECKS.values()]
    return [check.finding(sign) for check, sign in seen if sign is not None]


def _look(check: Check, curves: Curves, recorded: Recorded) -> Sign | None:
    """What a check of tokens sees. Files of other trainers may hold anything: it must not end."""
    if check.of_ledger is None:
        return None
    try:
        return attempt(check.of_ledger, curves, recorded)
    except _UNREADABLE as error:
        _log.warning("the check %s was left out: %s: %s", check.id, type(error).__name__, error)
        return None


def reviewed(finding: Finding, curves: Curves, recorded: Recorded) -> Finding:
    """The finding of the curves as the ledger shows it."""
    look = REVIEWS.get(finding.id)
    if look is None:
        return finding
    try:
        return look(curves, finding, recorded)
    except (NoSign, *_UNREADABLE):
        return finding


def with_places(finding: Finding, recorded: Recorded) -> Finding:
    """The finding with the tokens or responses that show it."""
    look = WITNESSES.get(finding.id)
    if look is None or finding.places:
        return finding
    try:
        return replace(finding, places=look(finding, recorded))
    except NoSign:
        return finding


class Examination:
    """One run and what is known of it so far. `findings` reads only what has grown."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.source: Source = open_source(run)
        self._lock = threading.Lock()
        self._ledger: tuple[Any, list[Finding]] = (None, [])
        self._reviewed: dict[str, tuple[Any, Finding]] = {}

    def findings(self, *, thorough: bool = True) -> list[Finding]:
        """Every finding, in order. `thorough`: looks at the newest recorded step too."""
        with self._lock:
            curves = self.source.refresh()
            found = curve_findings(curves)
            recorded = Recorded(self.run, last=thorough)
            if recorded.chosen:
                known = {finding.id for finding in found}
                found = [self._again(finding, curves, recorded) for finding in found]
                found = [with_places(finding, recorded) for finding in found]
                found += self._of_ledger(curves, recorded, known)
            return ordered(found)

    def _of_ledger(self, curves: Curves, recorded: Recorded, known: set[str]) -> list[Finding]:
        """Those of the ledger, computed anew only if other steps are looked at."""
        key = (tuple(recorded.chosen), curves.top_score)
        if self._ledger[0] != key:
            found = ledger_findings(curves, recorded)
            self._ledger = (key, [with_places(finding, recorded) for finding in found])
        return [finding for finding in self._ledger[1] if finding.id not in known]

    def _again(self, finding: Finding, curves: Curves, recorded: Recorded) -> Finding:
        """The finding as the ledger shows it, looked up anew only if other steps are looked at."""
        key = (tuple(recorded.chosen), finding.since, finding.severity)
        known, before = self._reviewed.get(finding.id, (None, finding))
        if known != key:
            before = reviewed(finding, curves, recorded)
            self._reviewed[finding.id] = (key, before)
        return before

    @property
    def steps(self) -> int:
        return self.source.curves.last_step


def examine(run: Path | str) -> Examination:
    """Opens a run folder, or the logs of another trainer. Says why it cannot be read."""
    path = Path(run)
    if not path.exists():
        raise TelescopeError(f"no run {run}: give the folder of a run, e.g. runs/arithmetic")
    return Examination(path)


@functools.lru_cache(maxsize=16)
def _kept(run: Path) -> Examination:
    return examine(run)


def findings(run: Path | str) -> list[dict[str, Any]]:
    """The findings of a run as the page shows them; cheap for a run that is looked at again.

    A run that cannot be read has none.
    """
    try:
        return [finding.to_json() for finding in _kept(Path(run)).findings(thorough=False)]
    except TelescopeError:
        return []
