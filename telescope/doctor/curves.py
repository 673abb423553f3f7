"""The metrics of a run as curves, and the few statistics that checks are made of.

Every statistic at a step uses only that step and earlier ones. So a check that runs during training
sees what the same check sees afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt

from telescope.doctor import thresholds as limits

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Statistic = Callable[[Sequence[float]], float]

_FIRST_ROOM = 256
_EMPTY = np.zeros(0)

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


class NoSign(Exception):  # noqa: N818 -- no error: it ends a check, as StopIteration ends a loop
    """A check lacks what it looks at, or does not see what it looks for."""


class Curve:
    """One metric: steps and finite values, in order. It grows at its end."""

    def __init__(self, steps: Floats = _EMPTY, values: Floats = _EMPTY) -> None:
        self._steps = np.concatenate([steps, np.zeros(_FIRST_ROOM)])
        self._values = np.concatenate([values, np.zeros(_FIRST_ROOM)])
        self._length = len(steps)
        self._running: dict[tuple[int, Statistic], tuple[Floats, int]] = {}

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
        self._running = {key: (room, min(n, last)) for key, (room, n) in self._running.items()}

    def running_median(self, window: int = limits.SMOOTH) -> Floats:
        """The median of the last `window` values at each step."""
        return self._over(window, median)

    def running_mean(self) -> Floats:
        """The mean of the last SCORE_WINDOW values at each step."""
        return self._over(limits.SCORE_WINDOW, fmean)

    def _over(self, window: int, statistic: Statistic) -> Floats:
        """A statistic of the last `window` values at each step. Computed once each."""
        room, done = self._running.get((window, statistic), (np.zeros(0), 0))
        if len(room) < self._length:
            room = np.concatenate([room, np.zeros(len(self._steps) - len(room))])
        for i in range(done, self._length):
            room[i] = statistic(self._values[max(0, i + 1 - window) : i + 1].tolist())
        self._running[window, statistic] = (room, self._length)
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

    def median_at(self, steps: Floats) -> Floats:
        """The running median at or before each step."""
        return self.at(steps, self.running_median())

    def mean_at(self, steps: Floats) -> Floats:
        """The running mean at or before each step."""
        return self.at(steps, self.running_mean())

    def value_at(self, step: float) -> float:
        """The last value at or before a step."""
        return float(self.at(np.array([float(step)]))[0])

    def after(self, step: float) -> Curve:
        """The part later than a step."""
        later = self.steps > step
        return Curve(self.steps[later], self.values[later])


class Curves:
    """All metrics of a run by their canonical names, and its settings by dotted key."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings: Mapping[str, Any] = settings or {}
        self.broken: list[tuple[int, str]] = []
        """(step, metric) of values that are not finite."""
        self.last_step = 0
        self._curves: dict[str, Curve] = {}

    def add(self, step: float, row: Mapping[str, Any]) -> None:
        """Adds what was logged for a step."""
        self.last_step = max(self.last_step, int(step))
        for name, value in row.items():
            if name == "step" or isinstance(value, str | bool | list | dict):
                continue
            if value is None or not math.isfinite(value):
                self.broken.append((int(step), name))
                continue
            if name not in self._curves:
                self._curves[name] = Curve()
            self._curves[name].add(float(step), float(value))

    def __contains__(self, name: str) -> bool:
        return name in self._curves

    def get(self, name: str, least: int = 1) -> Curve | None:
        """The curve of a metric, if it has at least so many values."""
        curve = self._curves.get(name)
        return curve if curve is not None and len(curve) >= least else None

    def need(self, name: str, least: int = 1) -> Curve:
        """The same; without it the check ends."""
        curve = self.get(name, least)
        if curve is None:
            raise NoSign
        return curve

    def part_names(self) -> list[str]:
        """The parts of the reward that are logged."""
        logged = [name for name in self._curves if name.startswith("reward/")]
        names = [name.removeprefix("reward/") for name in logged]
        return [name for name in names if name not in _NOT_PARTS and "/" not in name]

    def setting(self, key: str) -> Any:
        """A setting of the run; None if it is not known or not set."""
        return self.settings.get(key)

    # ---- does it learn? ----

    @property
    def top_score(self) -> float | None:
        """The score of a right answer; None if scores are not of that kind."""
        score = self.get("reward/score_mean")
        top = self.setting("eval.correct_score")
        top = float(top) if isinstance(top, int | float) else 1.0
        if score is None or float(score.values.max()) > top + 1e-6 or top <= 0:
            return None
        return top

    def accuracy(self) -> Curve | None:
        """How often held-out answers are right, greedy and sampled ones together."""
        found = [self._curves[name] for name in limits.ACCURACIES if name in self._curves]
        if len(found) < 2 or not np.array_equal(found[0].steps, found[1].steps):
            return found[0] if found else None
        greedy, sampled = self._held_out()
        mean = (greedy * found[0].values + sampled * found[1].values) / (greedy + sampled)
        return Curve(found[0].steps, mean)

    def accuracy_error(self, accuracy: float) -> float:
        """The standard error of a difference of two held-out accuracies."""
        counts = zip(limits.ACCURACIES, self._held_out(), strict=True)
        count = sum(n for name, n in counts if name in self._curves) or limits.HELD_OUT
        share = min(max(accuracy, 0.02), 0.98)
        return math.sqrt(2 * share * (1 - share) / count)

    def _held_out(self) -> tuple[float, float]:
        """Numbers of held-out responses: greedy and sampled."""
        greedy = self.setting("eval.prompts") or limits.HELD_OUT
        sampled = self.setting("eval.samples") or limits.HELD_OUT
        return float(greedy), float(sampled)

    def noise(self) -> float:
        """Standard deviation of the score from step to step, without its trend."""
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
        score = self.get("reward/score_mean", least=limits.SCORE_START)
        if score is None:
            return np.full(len(steps), np.nan)
        return score.mean_at(steps) - score.start(limits.SCORE_START)

    def chance(self) -> float:
        """A difference of two smoothed scores that may be chance."""
        errors = math.sqrt(1 / limits.SCORE_START + 1 / limits.SCORE_WINDOW)
        return limits.GAIN_ERRORS * self.noise() * errors

    def learned(self, steps: Floats) -> Bools:
        """Whether the score at each step is above its start by more than chance."""
        score = self.get("reward/score_mean", least=limits.SCORE_START)
        if score is None:
            return np.zeros(len(steps), bool)
        size = max(self.top_score or 0.0, abs(score.start(limits.SCORE_START)))
        return self.gain(steps) > max(self.chance(), limits.LEAST_GAIN * size)

    def solved(self, steps: Floats) -> Bools:
        """Whether nearly every answer is right at each step."""
        found = np.zeros(len(steps), bool)
        score = self.get("reward/score_mean")
        top = self.top_score
        if score is not None and top is not None:
            found |= score.mean_at(steps) >= limits.SOLVED * top
        accuracy = self.accuracy()
        if accuracy is not None:
            found |= accuracy.at(steps) >= limits.SOLVED
        return found


def find_onset(bad: Bools, persist: int = limits.PERSIST) -> int | None:
    """Where the first stretch of `persist` bad entries in a row begins."""
    if len(bad) < persist or not bad.any():
        return None
    together = np.convolve(bad, np.ones(persist), "valid") >= persist - 0.5
    return int(together.argmax()) if together.any() else None


def last_onset(bad: Bools, persist: int = limits.PERSIST) -> int | None:
    """The same of the last such stretch. It ends with `persist` entries in a row that are good."""
    begin = 0
    if len(bad) >= persist:
        good = np.convolve(~bad, np.ones(persist), "valid") >= persist - 0.5
        ends = np.flatnonzero(good)
        begin = int(ends[-1]) + persist if len(ends) else 0
    place = find_onset(bad[begin:], persist)
    return None if place is None else begin + place


def onset(bad: Bools, persist: int = limits.PERSIST) -> int:
    """The same; without such a stretch the check ends."""
    place = find_onset(bad, persist)
    if place is None:
        raise NoSign
    return place


def earliest(onsets: Mapping[str, int | None]) -> tuple[str, int]:
    """The first of several onsets and its name; without any the check ends."""
    found = [(place, name) for name, place in onsets.items() if place is not None]
    if not found:
        raise NoSign
    place, name = min(found, key=lambda pair: pair[0])
    return name, place
