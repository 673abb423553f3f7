"""What takes a while to find out about a run, in the background; and when to find out again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")

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
