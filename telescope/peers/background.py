"""A thread that does the recorder's work, so that training never waits for it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Background:
    """Does jobs one after the other. At most `waiting` of them are held: memory stays bounded.

    The thread is started again where it is gone, e.g. in a process that was forked.
    """

    def __init__(self, name: str, waiting: int = 64) -> None:
        self.name = name
        self.waiting = waiting
        self._thread: threading.Thread | None = None
        self._jobs: queue.Queue[Job] = queue.Queue(waiting)

    def submit(self, job: Job) -> bool:
        """Whether there was room for the job; never waits."""
        self._start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def finish(self, timeout: float) -> bool:
        """Waits until the jobs so far are done; False if that took too long."""
        if self._thread is None or (not self._thread.is_alive() and self._jobs.empty()):
            return True
        self._start()
        done = threading.Event()
        try:
            self._jobs.put(done.set, timeout=timeout)
        except queue.Full:
            return False
        return done.wait(timeout)

    def _start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        left = self._jobs
        self._jobs = queue.Queue(self.waiting)  # a dead thread may hold the old one's lock
        with contextlib.suppress(queue.Empty, queue.Full):
            while self._thread is not None and left.mutex.acquire(blocking=False):
                left.mutex.release()
                self._jobs.put_nowait(left.get_nowait())
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        jobs = self._jobs
        while True:
            with contextlib.suppress(BaseException):  # a job says itself what went wrong
                jobs.get()()
