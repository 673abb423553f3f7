"""Commands of Telescope in forks of this process, so that each starts at once.

The parent imports everything and computes nothing: a fork has no threads to miss.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

TRACEBACK = "Traceback (most recent call last)"
T = TypeVar("T")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; negative: the signal that ended it."""
    said: str
    """Everything that it printed."""

    @property
    def has_traceback(self) -> bool:
        crashed = self.code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
        without_a_word = self.code == 1 and not self.said.strip()
        return TRACEBACK in self.said or crashed or without_a_word

    @property
    def refused(self) -> bool:
        """One line says what is wrong."""
        return self.code == 2 and not self.has_traceback


class Command:
    """A command in a process of its own. `before` runs in that process first."""

    def __init__(
        self,
        arguments: Sequence[str],
        said: Path,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.said = said
        said.touch()  # a signal may come before the child opens it
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run(arguments, said, before)

    def wait(self, seconds: float = 300.0) -> Ended:
        """Waits for the end. A command that takes longer is killed, and has no good end."""
        ended = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                text = self.said.read_text("utf-8", "replace")
                return Ended(os.waitstatus_to_exitcode(status), text)
            if time.monotonic() > ended:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return Ended(1, f"it did not end within {seconds:g} s")
            time.sleep(0.002)

    def wait_or(self, seconds: float) -> bool:
        """Waits so long, or until the end. Returns whether the command is still running."""
        ended = time.monotonic() + seconds
        while time.monotonic() < ended:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
            time.sleep(0.001)
        return True


def _run(arguments: Sequence[str], said: Path, before: Callable[[], None]) -> None:
    """The child's part: never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        from telescope.commands import main

        before()
        main(list(arguments))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def in_child(work: Callable[[], T]) -> T:
    """The result of `work`, computed in a fork: the parent stays free of threads."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        result: Any
        try:
            result = (True, work())
        except BaseException:
            result = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    good, value = pickle.loads(content)
    if not good:
        raise RuntimeError(value)
    return value
