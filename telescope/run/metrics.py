"""Metrics: exact sums over tokens while a step runs, one line of metrics.jsonl after it.

Every name is defined in docs/metrics.md; a test keeps the two sets equal.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from telescope.config import Config
from telescope.errors import TelescopeError


class MetricsLog:
    """Appends one JSON object per step to metrics.jsonl, and tells the trackers."""

    def __init__(self, config: Config, *, after_step: int) -> None:
        self.path = config.run_dir / "metrics.jsonl"
        with self._saying_why():
            self._forget_after(after_step)
            self._file = self.path.open("a", encoding="utf-8")
        self._trackers = [_tracker(name, config) for name in config.log.trackers]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {"step": step, **{k: v if math.isfinite(v) else None for k, v in metrics.items()}}
        with self._saying_why():
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        for tracker in self._trackers:
            tracker(step, metrics)

    def close(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # what was flushed is there; the rest could not be written before either
            self._file.close()
        for tracker in self._trackers:
            tracker(-1, {})

    @contextmanager
    def _saying_why(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TelescopeError(
                f"cannot write {self.path}: {error.strerror}; free some space or fix the file, then go on with --resume"
            ) from error

    def _forget_after(self, step: int) -> None:
        """A resumed run writes the steps after its checkpoint again; the old lines move to metrics.discarded.jsonl."""
        rows = read_metrics(self.path)
        late = [row for row in rows if row["step"] > step]
        if late:
            with self.path.with_name("metrics.discarded.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in late)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(
            "".join(json.dumps(row) + "\n" for row in rows if row["step"] <= step), "utf-8"
        )
        temporary.replace(self.path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a line that a crash cut in half, or that is none of ours, is left out."""
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:  # no JSON, or no UTF-8
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int | float):
            rows.append(row)
    return rows


def _tracker(name: str, config: Config) -> Any:
    """A function (step, metrics); step −1 closes it."""
    try:
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(config.run_dir / "tensorboard"))

            def tensorboard(step: int, metrics: Mapping[str, float]) -> None:
                for key, value in metrics.items():
                    writer.add_scalar(key, value, step)
                if step < 0:
                    writer.close()

            return tensorboard
        module = __import__(name)  # wandb and trackio share one API
    except ImportError:
        raise TelescopeError(
            f"log.trackers names {name}, which is not installed: pip install -e '.[{name}]'"
        ) from None
    module.init(project="telescope", name=config.name, config=config.model_dump())

    def remote(step: int, metrics: Mapping[str, float]) -> None:
        if step < 0:
            module.finish()
        else:
            module.log(dict(metrics), step=step)

    return remote
