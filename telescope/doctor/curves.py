"""The metrics of a run as curves, and the few statistics that checks are made of.

Every statistic at a step uses only that step and earlier ones. So a check that runs during training
sees what the same check sees afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from telescope.doctor.thresholds import (
    ACCURACIES,
    GAIN_ERRORS,
    HELD_OUT,
    LEAST_GAIN,
    SCORE_START,
    SCORE_WINDOW,
    SOLVED,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

T = TypeVar("T")

_FIRST_ROOM = 256


class Curve:
    """One metric: steps and finite values, in order. It grows at its end."""

    def __init__(self) -> None:
        self._steps = np.zeros(_FIRST_ROOM)
        self._values = np.zeros(_FIRST_ROOM)
        self._length = 0
        self._trails: dict[tuple[int, str], tuple[Floats, int]] = {}

    def __len__(self) -> int:
        return self._length

    @property
    def steps(self) -> Floats:
        return self._steps[: self._length]

    @property
    def values(self) -> Floats:
        return self._values[: self._length]

    def add(self, step: float, value: float) -> None:
        """Appends a value; a second one for the same step replaces the first."""
        if self._length and self._steps[self._length - 1] == step:
            self._values[self._length - 1] = value
            self._forget_last()
            return
        if self._length == len(self._steps):
            self._steps = np.concatenate([self._steps, np.zeros(self._length)])
            self._values = np.concatenate([self._values, np.zeros(self._length)])
        self._steps[self._length] = step
        self._values[self._length] = value
        self._length += 1

    def _forget_last(self) -> None:
        last = self._length - 1
        self._trails = {key: (room, min(n, last)) for key, (room, n) in self._trails.items()}

    def trail(self, window: int, how: str = "median") -> Floats:
        """The median, or mean, of the last `window` values at each step. Computed once each."""
        if (window, how) not in self._trails:
            self._trails[window, how] = (np.zeros(len(self._steps)), 0)
        room, done = self._trails[window, how]
        if done == self._length:
            return room[: self._length]
        if len(room) < self._length:
            room = np.concatenate([room, np.zeros(len(self._steps) - len(room))])
        statistic = median if how == "median" else fmean
        for i in range(done, self._length):
            room[i] = statistic(self._values[max(0, i + 1 - window) : i + 1].tolist())
        self._trails[window, how] = (room, self._length)
        return room[: self._length]

    def start(self, count: int = 1) -> float:
        """The mean of the first values; NaN if there are fewer."""
        if self._length < count:
            return math.nan
        return float(self._values[:count].mean())

    def at(self, steps: Floats, values: Floats | None = None) -> Floats:
        """The last value at or before each step; NaN before the first one."""
        own = self.values if values is None else values
        if not len(own):
            return np.full(len(steps), np.nan)
        if len(steps) == len(own) and steps[0] == self._steps[0] and steps[-1] == self.steps[-1]:
            return own  # the same steps: both count every step of the run
        place = np.searchsorted(self.steps, steps, side="right") - 1
        return np.where(place >= 0, own[np.maximum(place, 0)], np.nan)

    def value_at(self, step: float) -> float:
        """The last value at or before a step."""
        return float(self.at(np.array([float(step)]))[0])

    def after(self, step: float) -> Curve:
        """The part later than a step."""
        later = Curve()
        for each, value in zip(self.steps.tolist(), self.values.tolist(), strict=True):
            if each > step:
                later.add(each, value)
        return later


class Curves:
    """All metrics of a run by their canonical names, and its settings by dotted key."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings: Mapping[str, Any] = settings or {}
        self.broken: list[tuple[int, str]] = []
        """(step, metric) of values that are not finite."""
        self.last_step = 0
        self._curves: dict[str, Curve] = {}
        self._known: dict[Any, Any] = {}
        """What was computed since the last row."""

    def add(self, step: float, row: Mapping[str, Any]) -> None:
        """Adds what was logged for a step."""
        self._known.clear()
        self.last_step = max(self.last_step, int(step))
        for name, value in row.items():
            if name == "step" or isinstance(value, str | bool | list | dict):
                continue
            if value is None or not math.isfinite(value):
                self.broken.append((int(step), name))
                continue
            curve = self._curves.get(name)
            if curve is None:
                curve = self._curves[name] = Curve()
            curve.add(float(step), float(value))

    def __contains__(self, name: str) -> bool:
        return name in self._curves

    def get(self, name: str, least: int = 1) -> Curve | None:
        """The curve of a metric, if it has at least so many values."""
        curve = self._curves.get(name)
        return curve if curve is not None and len(curve) >= least else None

    def names(self) -> list[str]:
        return list(self._curves)

    def setting(self, key: str) -> Any:
        """A setting of the run; None if it is not known or not set."""
        return self.settings.get(key)

    # ---- does it learn? ----

    def _once(self, key: Any, compute: Callable[[], T]) -> T:
        """A number that several checks need, computed once per row."""
        if key not in self._known:
            self._known[key] = compute()
        found: T = self._known[key]
        return found

    @property
    def top_score(self) -> float | None:
        """The score of a right answer; None if scores are not of that kind."""
        return self._once("top", self._top_score)

    def _top_score(self) -> float | None:
        score = self.get("reward/score_mean")
        top = self.setting("eval.correct_score")
        top = float(top) if isinstance(top, int | float) else 1.0
        if score is None or float(score.values.max()) > top + 1e-6 or top <= 0:
            return None
        return top

    def accuracy(self) -> Curve | None:
        """How often held-out answers are right, greedy and sampled ones together."""
        found = [self._curves[name] for name in ACCURACIES if name in self._curves]
        if len(found) < 2 or not np.array_equal(found[0].steps, found[1].steps):
            return found[0] if found else None
        greedy, sampled = self._held_out()
        joint = Curve()
        mean = (greedy * found[0].values + sampled * found[1].values) / (greedy + sampled)
        for step, value in zip(found[0].steps.tolist(), mean.tolist(), strict=True):
            joint.add(step, value)
        return joint

    def accuracy_error(self, accuracy: float) -> float:
        """The standard error of a difference of two held-out accuracies."""
        counts = zip(ACCURACIES, self._held_out(), strict=True)
        count = sum(n for name, n in counts if name in self._curves) or HELD_OUT
        share = min(max(accuracy, 0.02), 0.98)
        return math.sqrt(2 * share * (1 - share) / count)

    def _held_out(self) -> tuple[float, float]:
        """Numbers of held-out responses: greedy and sampled."""
        greedy = self.setting("eval.prompts") or HELD_OUT
        sampled = self.setting("eval.samples") or HELD_OUT
        return float(greedy), float(sampled)

    def noise(self) -> float:
        """Standard deviation of the score from step to step, without its trend."""
        return self._once("noise", self._noise)

    def _noise(self) -> float:
        score = self.get("reward/score_mean", least=3)
        if score is None:
            return 0.0
        return float(np.std(np.diff(score.values)) / math.sqrt(2))

    def score_size(self) -> float:
        """How large scores are: their largest mean, or what their noise tells."""
        score = self.get("reward/score_mean")
        largest = float(np.abs(score.values).max()) if score is not None else 0.0
        return max(largest, 5 * self.noise())

    def gain(self, steps: Floats) -> Floats:
        """How much the score rose since the start, at each step."""
        score = self.get("reward/score_mean", least=SCORE_START)
        if score is None:
            return np.full(len(steps), np.nan)
        return score.at(steps, score.trail(SCORE_WINDOW, "mean") - score.start(SCORE_START))

    def chance(self) -> float:
        """A difference of two smoothed scores that may be chance."""
        errors = math.sqrt(1 / SCORE_START + 1 / SCORE_WINDOW)
        return GAIN_ERRORS * self.noise() * errors

    def learned(self, steps: Floats) -> Bools:
        """Whether the score at each step is above its start by more than chance."""
        return self._once(("learned", _key(steps)), lambda: self._learned(steps))

    def _learned(self, steps: Floats) -> Bools:
        score = self.get("reward/score_mean", least=SCORE_START)
        if score is None:
            return np.zeros(len(steps), bool)
        least = LEAST_GAIN * max(self.top_score or 0.0, abs(score.start(SCORE_START)))
        return self.gain(steps) > max(self.chance(), least)

    def solved(self, steps: Floats) -> Bools:
        """Whether nearly every answer is right at each step."""
        return self._once(("solved", _key(steps)), lambda: self._solved(steps))

    def _solved(self, steps: Floats) -> Bools:
        found = np.zeros(len(steps), bool)
        score = self.get("reward/score_mean")
        top = self.top_score
        if score is not None and top is not None:
            found |= score.at(steps, score.trail(SCORE_WINDOW, "mean")) >= SOLVED * top
        accuracy = self.accuracy()
        if accuracy is not None:
            found |= accuracy.at(steps) >= SOLVED
        return found


def _key(steps: Floats) -> tuple[int, float, float]:
    """Tells steps of one run apart: how many, the first and the last."""
    return (len(steps), float(steps[0]), float(steps[-1])) if len(steps) else (0, 0.0, 0.0)


_NOT_PARTS = (
    "score_mean",
    "kl",
    "kl_coef",
    "token_reward_mean",
    "shaped_mean",
    "overlong",
    "clipped",
    "norm_mean",
    "norm_std",
    "flat_groups",
)
"""Metrics of the reward that are not one of its parts."""


def part_names(run: Curves) -> list[str]:
    """The parts of the reward that are logged."""
    names = [name.removeprefix("reward/") for name in run.names() if name.startswith("reward/")]
    return [name for name in names if name not in _NOT_PARTS and "/" not in name]


def onset(bad: Bools, persist: int) -> int | None:
    """Where the first stretch of `persist` bad entries in a row begins."""
    if len(bad) < persist or not bad.any():
        return None
    together = np.convolve(bad, np.ones(persist), "valid") >= persist - 0.5
    return int(together.argmax()) if together.any() else None
