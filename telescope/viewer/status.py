"""How far a run is, and whether a process still works on it."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from telescope.ledger import reader as ledger
from telescope.ledger.lines import is_locked
from telescope.viewer.series import Metrics

State = Literal["running", "finished", "stopped", "silent", "empty", "deleted"]

FILES_OF_A_RUN = ("config.toml", "metrics.jsonl", "ledger")
PATIENCE_STEPS = 5
"""A run is silent after so many times the seconds of a step …"""
PATIENCE_SECONDS = 60.0
"""… but not before this many seconds: evaluation and checkpoints take time too."""
FORGOTTEN_SECONDS = 3_600.0
"""Without a lock file, a run that has been silent this long counts as stopped."""
_TIMED_STEPS = 20
"""The last steps whose seconds give the time left."""


def is_run(folder: Path) -> bool:
    """Whether the folder holds what a run writes."""
    return any((folder / name).exists() for name in FILES_OF_A_RUN)


@dataclass(frozen=True)
class Status:
    """What a page shows about a run at one moment. Times are seconds since 1970."""

    now: float
    state: State
    step: int
    total_steps: int | None
    seconds_per_step: float | None
    started: float | None
    updated: float | None

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last step, if the run goes on as in its last steps."""
        going = self.state in ("running", "silent")
        if not going or self.total_steps is None or self.seconds_per_step is None:
            return None
        return round(self.seconds_per_step * max(self.total_steps - self.step, 0), 1)

    @property
    def silent_for(self) -> float | None:
        """Seconds since the run last wrote something, where that is longer than usual."""
        if self.state != "silent" or self.updated is None:
            return None
        return round(self.now - self.updated, 1)

    def to_json(self) -> dict[str, Any]:
        return {
            "now": round(self.now, 3),
            "status": self.state,
            "silent_for": self.silent_for,
            "step": self.step,
            "total_steps": self.total_steps,
            "eta_s": self.eta_s,
            "seconds_per_step": self.seconds_per_step,
            "started": self.started,
            "updated": self.updated,
        }


def status_of(run: Path, metrics: Metrics, total_steps: int | None) -> Status:
    """The status of a run folder now. `metrics` is read up to date."""
    now = time.time()
    if not run.is_dir():
        return Status(now, "deleted", 0, total_steps, None, None, None)
    recorded = ledger.steps(run)
    step = int(metrics.last_step if metrics.last_step is not None else max(recorded, default=0))
    seconds = _seconds_per_step(metrics)
    files = [run / "metrics.jsonl"] + [ledger.path_of(run, step) for step in recorded[-1:]]
    updated = max((time for time in map(_written, files) if time is not None), default=None)
    started = _written(run / "config.toml")
    if started is not None and updated is not None and started > updated:
        started = None  # a copied run: its files have the time of the copy
    is_empty = metrics.last_step is None and not recorded
    state = _state(
        locked=is_locked(run / ".lock"),
        is_empty=is_empty,
        is_done=total_steps is not None and step >= total_steps and not is_empty,
        age=now - (updated or started or 0.0),
        patience=max(PATIENCE_SECONDS, PATIENCE_STEPS * (seconds or 0.0)),
    )
    return Status(now, state, step, total_steps, seconds, started, updated)


def _state(
    *, locked: bool | None, is_empty: bool, is_done: bool, age: float, patience: float
) -> State:
    """`locked`: a process holds the run's lock; None: there is no lock file to tell."""
    if is_done and not locked:
        return "finished"
    if locked or (locked is None and age < patience and not is_empty):
        return "running" if age < patience else "silent"
    if is_empty:
        return "empty"
    return "silent" if locked is None and age < FORGOTTEN_SECONDS else "stopped"


def _seconds_per_step(metrics: Metrics) -> float | None:
    timed = metrics.series.get("timing/step")
    if timed is None or not len(timed):
        return None
    return float(f"{statistics.fmean(timed.values[-_TIMED_STEPS:]):.4g}")


def _written(path: Path) -> float | None:
    try:
        return round(path.stat().st_mtime, 3)
    except OSError:
        return None
