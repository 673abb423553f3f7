"""A call in a thread of its own, with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Starts the call at once.

    A thread cannot be ended: one that is late runs on, and what it returns is ignored.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # even sys.exit()
            self._errors.append(error)

    def result(self, seconds: float | None = None) -> T:
        """What the call returned; raises what it raised, or TimeoutError if it took longer."""
        if seconds is None:
            self._thread.join()
        else:
            self._thread.join(max(self._started + seconds - time.monotonic(), 0.0))
        if self._errors:
            raise self._errors[0]
        if not self._results:
            raise TimeoutError
        return self._results[0]
