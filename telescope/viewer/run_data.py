"""A run as the page reads it: steps, samples and curves, read on demand and kept for a while."""

from __future__ import annotations

import json
import math
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import pyarrow as pa

from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.ledger import reader as ledger
from telescope.viewer.payload import index_rows, prompt_key, shorten_text
from telescope.viewer.value_paths import value_paths
from telescope.viewer.whatif import WhatIf, offers, recompute

CURVES = (
    "reward/score_mean",
    "reward/kl",
    "actor/pg_clipfrac",
    "actor/entropy",
    "eval/sampled_accuracy",
    "eval/greedy_accuracy",
)
MAX_POINTS = 400
"""Points of one curve."""
_FILES_OF_A_RUN = ("config.toml", "metrics.jsonl", "ledger")

Made = TypeVar("Made")
Curves = dict[str, list[list[float]]]
"""metric -> [[step, value], …]"""
Stamp = tuple[int, int]
"""A step and when its file was written: a resumed run writes some steps again."""


class RunData:
    """One run. A step's file is read when the step is shown, a sample when it is asked for."""

    def __init__(self, run: Path, *, keep: int = 3) -> None:
        if not run.is_dir():
            raise TelescopeError(
                f"no run {run}: give the folder of a run, e.g. runs/arithmetic-seed0"
            )
        if not any((run / name).exists() for name in _FILES_OF_A_RUN):
            files = " or ".join(_FILES_OF_A_RUN)
            raise TelescopeError(
                f"{run} is not a run folder: it has no {files}; give one like runs/arithmetic-seed0"
            )
        self.run = run
        self.correct_score = _correct_score(run)
        self._tables = _Recent[pa.Table](keep)
        self._samples = _Recent[Sample](64)
        self._whatifs = _Recent[list[Sample]](4)
        self._curves = _Recent[Curves](1)
        self._prompts: dict[int, set[str]] = {}

    def steps(self) -> list[int]:
        """The recorded steps, in order."""
        return ledger.steps(self.run)

    def info(self) -> dict[str, Any]:
        """What the page polls while a run goes on. Its size does not grow with the run."""
        return {
            "name": shorten_text(self.run.resolve().name, 200),
            "steps": self.steps(),
            "curves": self._read_curves(),
            "right": self.correct_score,
        }

    def index(self, step: int) -> list[dict[str, Any]]:
        """One row per sample of the step, for sorting and filtering."""
        _, table = self._read(step)
        return index_rows(table, self.correct_score)

    def paths(self, step: int) -> dict[str, Any] | None:
        """V along the step's right and wrong answers; None without a critic."""
        _, table = self._read(step)
        return value_paths(table, self.correct_score)

    def steps_of_prompt(self, key: str) -> list[int]:
        """The steps that recorded a response to this prompt. Reads one column of each file."""
        for step in self.steps():
            if step not in self._prompts:
                prompts = ledger.read(self.run, step, ["prompt"]).column("prompt")
                self._prompts[step] = {prompt_key(prompt) for prompt in prompts.to_pylist()}
        return [step for step in self.steps() if key in self._prompts[step]]

    def sample(self, step: int, position: int) -> Sample:
        """The sample at this position of the step."""
        stamp, table = self._read(step)
        if not 0 <= position < table.num_rows:
            raise TelescopeError(
                f"step {step} has {table.num_rows} recorded samples: 0 to {table.num_rows - 1}"
            )
        return self._samples((*stamp, position), lambda: ledger.sample_of(table, position))

    def samples_of(self, step: int) -> list[Sample]:
        """Every recorded sample of the step."""
        _, table = self._read(step)
        return [self.sample(step, position) for position in range(table.num_rows)]

    def whatif(self, step: int, positions: list[int], whatif: WhatIf) -> list[Sample]:
        """These samples with their credit computed anew, whitened together."""
        stamp, _ = self._read(step)
        samples = [self.sample(step, position) for position in positions]
        key = (stamp, whatif, tuple(positions))
        return self._whatifs(key, lambda: recompute(samples, whatif))

    def settings(self, step: int) -> Settings:
        """The settings that the step was made with."""
        return self.sample(step, 0).settings

    def estimators(self, step: int) -> list[dict[str, Any]]:
        """The estimators that can be tried on the step's samples."""
        if not self.index(step):
            return []
        return [asdict(offer) for offer in offers(self.settings(step))]

    def _read(self, step: int) -> tuple[Stamp, pa.Table]:
        try:
            written = ledger.path_of(self.run, step).stat().st_mtime_ns
        except (OSError, OverflowError):
            raise TelescopeError("the ledger has no such step") from None
        stamp = (step, written)
        return stamp, self._tables(stamp, lambda: ledger.read(self.run, step))

    def _read_curves(self) -> Curves:
        path = self.run / "metrics.jsonl"
        if not path.exists():
            return {}
        stat = path.stat()
        return self._curves((stat.st_mtime_ns, stat.st_size), lambda: curves(path))


class _Recent(Generic[Made]):
    """Keeps the last few results by key. Each is made once, even if several threads ask."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._made: OrderedDict[Hashable, Made] = OrderedDict()
        self._lock = Lock()

    def __call__(self, key: Hashable, make: Callable[[], Made]) -> Made:
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
                while len(self._made) > self._keep:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]


def curves(path: Path) -> Curves:
    """The curves of a metrics file, in its order. A line that is cut off is skipped.

    Long curves are thinned to MAX_POINTS, with the first and the last point kept.
    """
    found: Curves = {}
    for line in _lines(path):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            continue
        for name in CURVES:
            value = row.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(name, []).append([row["step"], float(f"{value:.7g}")])
    return {name: _thin(points) for name, points in found.items()}


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise TelescopeError(
            f"{path} cannot be read: {error.strerror}; a run writes its metrics into that file"
        ) from None


def _thin(points: list[list[float]]) -> list[list[float]]:
    if len(points) <= MAX_POINTS:
        return points
    stride = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(i * stride)] for i in range(MAX_POINTS)]


def _correct_score(run: Path) -> float:
    """The score from which a response counts as right, from the run's config; 1 without one."""
    try:
        section = tomllib.loads((run / "config.toml").read_text("utf-8"))["eval"]
        earlier = section.get("right", 1.0)  # the name before 0.2
        return float(section.get("correct_score", earlier))
    except (OSError, KeyError, TypeError, ValueError):
        return 1.0
