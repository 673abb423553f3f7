"""What looks wrong in a run, as the page shows it: a panel, marks in the charts, a badge.

An alarm is {id, severity, since, what_zh, what_en, remedy_zh, remedy_en, href}: `since` is the step
where it began, `href` the place of the page that shows it. They come in the order in which they
should be read, causes before what they lead to.
"""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from telescope.doctor import findings

KEYS = ("id", "severity", "since", "what_zh", "what_en", "remedy_zh", "remedy_en", "href")

_LOOKING = ThreadPoolExecutor(1, "alarms")
"""One thread for all runs: a list of many runs must not wait for it, nor keep every core busy."""


def find_alarms(run: Path) -> list[dict[str, Any]]:
    """All alarms of a run: what the doctor finds in its curves and its ledger.

    Among them are the faults of a watched trainer's batches, and metrics that are not finite.
    """
    return [{key: finding[key] for key in KEYS} for finding in findings(run)]


class Alarms:
    """The alarms of one run. Looking takes a while the first time: it goes on in the background."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._known: list[dict[str, Any]] = []
        self._looked: Hashable = None
        self._looking: Future[None] | None = None
        self._lock = Lock()

    def known(self, stamp: Hashable, *, wait: bool = False) -> list[dict[str, Any]]:
        """What is known so far. Looks again where `stamp` tells that the run has grown.

        `wait`: until that is done.
        """
        with self._lock:
            if stamp != self._looked and (self._looking is None or self._looking.done()):
                self._looked = stamp
                self._looking = _LOOKING.submit(self._look)
            looking = self._looking
        if wait and looking is not None:
            looking.result()
        return self._known

    def _look(self) -> None:
        self._known = find_alarms(self.run)
