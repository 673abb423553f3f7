"""What a person sees during training: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_SHOWN = {
    "reward": "reward/score_mean",
    "kl": "reward/kl",
    "entropy": "actor/entropy",
    "vf_loss": "critic/vf_loss",
    "loss": "warm_start/loss",
}
"""Label and metric of each number on the progress line."""
SHORTEST_PATIENCE = 20.0
FIRST_STEP_SECONDS = 600.0
"""Seconds for a step after a signal: at least, and while no step has ended yet."""


class Progress:
    """Shows the step, a few metrics and the time left."""

    def __init__(self, *, start: int, steps: int, every: int = 1) -> None:
        self.start = start
        self.steps = steps
        self.every = every
        self.began = time.monotonic()
        self.bar = _new_bar() if sys.stdout.isatty() else None
        if self.bar is not None:
            self.task = self.bar.add_task("", total=steps, completed=start)
            self.bar.start()

    def say(self, message: str) -> None:
        """Prints a line above the bar."""
        if self.bar is not None:
            self.bar.console.print(message, highlight=False)
        else:
            _print(message)

    def update(self, done: int, metrics: Mapping[str, float]) -> None:
        """Shows that `done` steps are done."""
        shown = "  ".join(
            f"{label} {metrics[key]:.3f}" for label, key in _SHOWN.items() if key in metrics
        )
        if self.bar is not None:
            self.bar.update(self.task, completed=done, description=shown)
        elif done % self.every == 0 or done == self.steps:
            minutes, seconds = divmod(int(self._seconds_left(done)), 60)
            line = f"step {done}/{self.steps}  {shown}  eta {minutes}:{seconds:02d}"
            _print(line)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _seconds_left(self, done: int) -> float:
        elapsed = time.monotonic() - self.began
        per_step = elapsed / max(done - self.start, 1)
        return per_step * (self.steps - done)


def _print(line: str) -> None:
    """Prints a line. If nobody reads any more, as after `| head`, training goes on unseen."""
    try:
        print(line, flush=True)
    except ValueError:  # a reward has closed it
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- stays open
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # no file behind it, as in a notebook
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def _new_bar() -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(20),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )


class Stop:
    """Whether the user asked to stop.

    After the first Ctrl-C, SIGTERM or SIGHUP (the terminal was closed) the current step is finished
    and saved. A second one raises KeyboardInterrupt, and so does a step that does not end: a reward
    may hang.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        """Name of the signal that arrived."""
        self._longest: float | None = None
        self._began = time.monotonic()
        self._timer: threading.Timer | None = None

    def handle(self, number: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name
        patience = self.patience()
        main = threading.main_thread().ident
        assert main is not None
        self._timer = threading.Timer(patience, signal.pthread_kill, (main, number))
        self._timer.daemon = True
        self._timer.start()
        with contextlib.suppress(OSError):  # a closed terminal cannot show it
            print(
                f"\n{self.requested}: finishing this step, then saving; once more to quit at once "
                f"(without that after {patience:.0f} s)",
                file=sys.stderr,
                flush=True,
            )

    def patience(self) -> float:
        """Seconds that the current step may still take: three times the longest one so far."""
        if self._longest is None:
            return FIRST_STEP_SECONDS
        return max(SHORTEST_PATIENCE, 3 * self._longest)

    def after_step(self) -> str | None:
        """Notes how long the step took. Returns the signal that asked to stop, if any."""
        now = time.monotonic()
        self._longest = max(self._longest or 0.0, now - self._began)
        self._began = now
        if self.requested:
            self.close()
        return self.requested

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def graceful_stop() -> Iterator[Stop]:
    """Handles Ctrl-C, SIGTERM and SIGHUP with a `Stop`.

    Python allows handlers only in the main thread. A SIGHUP that `nohup` ignores stays ignored.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handled = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop.handle) for number in handled}
    try:
        yield stop
    finally:
        stop.close()
        for number, handler in before.items():
            signal.signal(number, handler)
