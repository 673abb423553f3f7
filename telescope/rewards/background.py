"""A call in a thread of its own, with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Starts the call at once.

    A thread cannot be ended: one that is late runs on, and what it returns is ignored.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._started = time.monotonic()
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:  # even sys.exit()
            self._future.set_exception(error)

    def result(self, seconds: float | None = None) -> T:
        """What the call returned; raises what it raised, or TimeoutError if it took longer."""
        left = None
        if seconds is not None:
            left = max(self._started + seconds - time.monotonic(), 0.0)
        return self._future.result(left)
