"""What a person sees while a run goes on: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_SHOWN = {
    "reward": "reward/score_mean",
    "kl": "reward/kl",
    "entropy": "actor/entropy",
    "vf_loss": "critic/vf_loss",
}


class Progress:
    def __init__(self, *, start: int, steps: int, every: int = 1) -> None:
        self.start, self.steps, self.every, self.began = start, steps, every, time.monotonic()
        self.bar: Any = None
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(20),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self.task = self.bar.add_task("", total=steps, completed=start)
            self.bar.start()

    def say(self, message: str) -> None:
        if self.bar is not None:
            self.bar.console.print(message, highlight=False)
        else:
            print(message, flush=True)

    def update(self, done: int, metrics: Mapping[str, float]) -> None:
        shown = "  ".join(
            f"{label} {metrics[key]:.3f}" for label, key in _SHOWN.items() if key in metrics
        )
        if self.bar is not None:
            self.bar.update(self.task, completed=done, description=shown)
        elif done % self.every == 0 or done == self.steps:
            left = (time.monotonic() - self.began) / max(done - self.start, 1) * (self.steps - done)
            print(
                f"step {done}/{self.steps}  {shown}  eta {int(left) // 60}:{int(left) % 60:02d}",
                flush=True,
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


class Stop:
    """Set by the first Ctrl-C or SIGTERM: the step in progress is finished and saved. A second one ends at once."""

    def __init__(self) -> None:
        self.requested: str | None = None

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name
        print(
            f"\n{self.requested}: finishing this step, then saving; once more to quit at once",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def graceful_stop() -> Iterator[Stop]:
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {
        number: signal.signal(number, stop._handle) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
