"""What the checks cost during training: their share of a step, and how it grows with the run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STEPS = 20
LONG = 1000
"""Steps of a long run, made of the short one's rows."""


@contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Notes the processor seconds of every call of a method."""
    method = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        begin = time.thread_time()
        try:
            return method(*given, **named)
        finally:
            spent.append(time.thread_time() - begin)

    setattr(owner, name, call)
    yield
    setattr(owner, name, method)


def overhead(folder: Path) -> list[str]:
    """Trains the built-in job for STEPS steps: what share of its processor time the checks take.

    Processor seconds, because other programs on the machine do not change them. The same run
    has both: without the checks it takes what is left.
    """
    import torch

    from telescope.config import Config
    from telescope.doctor import Watcher
    from telescope.trainer import Trainer

    torch.set_num_threads(1)
    config = Config.builtin(dir=str(folder), name="overhead", steps=STEPS, device="cpu")
    shutil.rmtree(config.run_dir, ignore_errors=True)
    trainer = Trainer(config)
    spent: list[float] = []
    begin = time.process_time()
    with timed(Watcher, "step", spent):
        trainer.fit()
    total = time.process_time() - begin
    checks = sum(spent)
    rows = [row for row in trainer.history() if "actor/pg_loss" in row]
    later = growth(config.model_dump(), rows)
    per_step = (total - checks) / len(rows)
    return [
        f"{len(rows)} steps: {total:.2f} s of one core, of which the checks {checks:.3f} s",
        f"with / without the checks: {total / (total - checks):.4f}",
        f"per step: {1000 * checks / len(spent):.2f} ms of {1000 * per_step:.0f} ms",
        f"step {LONG} of a long run: {1000 * later:.2f} ms ({100 * later / per_step:.2f} %)",
    ]


def growth(settings: dict[str, Any], rows: list[dict[str, Any]]) -> float:
    """Seconds that the checks take at step LONG, mean of the last ten steps."""
    from telescope.doctor import Watcher

    watcher = Watcher(settings)
    seconds = []
    for step in range(1, LONG + 1):
        row = {**rows[step % len(rows)], "step": step}
        if step <= LONG - 10:
            watcher.curves.add(step, row)
            continue
        begin = time.thread_time()
        watcher.step(step, row)
        seconds.append(time.thread_time() - begin)
    return sum(seconds) / len(seconds)
