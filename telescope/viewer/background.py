"""What takes a while to find out about a run: what looks wrong in it, and which files are damaged.

An alarm is {id, severity, since, what_zh, what_en, remedy_zh, remedy_en, href}: `since` is the step
where it began, `href` the place of the page that shows it. They come in the order in which they
should be read, causes before what they lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from telescope.chinese import chinese
from telescope.doctor import findings
from telescope.ledger import reader as ledger
from telescope.ledger.damage import LedgerDamage
from telescope.ledger.lines import damage_of

T = TypeVar("T")
Lines = list[dict[str, str]]
"""One line per kind of damaged file, in both languages: {zh, en}."""
KEYS = ("id", "severity", "since", "what_zh", "what_en", "remedy_zh", "remedy_en", "href")
"""Of an alarm."""

_LOOKING = ThreadPoolExecutor(1, "looking")
"""One thread for all runs: a list of many runs must not wait for it, nor keep every core busy."""


def written(path: Path) -> tuple[int, int]:
    """When a file was written, and its size: zeros if there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


class Background(Generic[T]):
    """The result of `look`, as far as it is known; `first` until then."""

    def __init__(self, look: Callable[[], T], first: T) -> None:
        self._find = look
        self._known = first
        self._looked: Hashable = None
        self._looking: Future[None] | None = None
        self._lock = Lock()

    def known(self, stamp: Hashable, *, wait: bool = False) -> T:
        """What is known so far. Looks again where `stamp` tells that the run has changed.

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
        self._known = self._find()


# ---- what is looked for ----


def find_alarms(run: Path) -> list[dict[str, Any]]:
    """All alarms of a run: what the doctor finds in its curves and its ledger.

    Among them are the faults of a watched trainer's batches, and metrics that are not finite.
    """
    return [{key: finding[key] for key in KEYS} for finding in findings(run)]


def find_damage(run: Path, in_ledger: LedgerDamage) -> Lines:
    """Which files of a run are damaged: config.toml, metrics.jsonl, the ledger's."""
    found = [*damage_of(run), *in_ledger.lines()]
    # Who reads the page need not know where the run is.
    told = [line.replace(f"{run}/", "") for line in found]
    return [{"zh": chinese(line), "en": line} for line in told]


def files_written(run: Path) -> tuple[tuple[int, int], ...]:
    """When each of the files that may be damaged was written, and its size."""
    recorded = [ledger.path_of(run, *file) for file in ledger.files(run)]
    return tuple(map(written, [run / "config.toml", run / "metrics.jsonl", *recorded]))
