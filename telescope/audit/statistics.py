"""Intervals, ranks and lines, on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean, linear_regression, pvariance

Z = 1.96
"""Standard errors to each side of a 95 % interval."""


@dataclass(frozen=True)
class Estimate:
    """The mean of some outcomes, and its 95 % interval."""

    mean: float
    low: float
    high: float
    error: float
    """Standard error of the mean."""


def estimate(outcomes: Sequence[float], low: float, high: float) -> Estimate:
    """Mean and 95 % interval of outcomes that lie between `low` and `high`.

    The interval is that of Agresti and Coull (1998) for any bounded outcome: z²/2 outcomes are
    added at each end of the range, then comes the usual interval. So 64 equal outcomes do not give
    an interval of width 0.
    """
    count = len(outcomes)
    mean = math.fsum(outcomes) / count
    squares = math.fsum((x - mean) ** 2 for x in outcomes)
    error = math.sqrt(squares / max(count - 1, 1) / count)
    added = Z * Z / 2
    total = count + 2 * added
    centre = (count * mean + added * (low + high)) / total
    spread = squares + count * (mean - centre) ** 2
    spread += added * ((low - centre) ** 2 + (high - centre) ** 2)
    half = Z * math.sqrt(spread / total / total)
    return Estimate(
        mean, min(mean, max(low, centre - half)), max(mean, min(high, centre + half)), error
    )


def exactly(x: float) -> Estimate:
    """What is known and not sampled."""
    return Estimate(x, x, x, 0.0)


def gain(reward: float, gamma: float, after: Estimate, before: Estimate) -> Estimate:
    """The advantage of a token: r + γ·V(after) − V(before).

    The two are sampled apart, so their distances add in squares. Zou & Donner 2008 (MOVER).
    """
    mean = reward + gamma * after.mean - before.mean
    below = math.hypot(gamma * (after.mean - after.low), before.high - before.mean)
    above = math.hypot(gamma * (after.high - after.mean), before.mean - before.low)
    error = math.hypot(gamma * after.error, before.error)
    return Estimate(mean, mean - below, mean + above, error)


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """(intercept, slope) of the least-squares line y = intercept + slope·x; None if x is constant.

    Noise in y does not bend it.
    """
    if pvariance(xs) <= 1e-12 * max(fmean(xs) ** 2, 1.0):
        return None
    slope, intercept = linear_regression(xs, ys)
    return intercept, slope


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Rank correlation, −1 to 1; equal numbers share their ranks. None if one is constant."""
    try:
        return correlation(_ranks(xs), _ranks(ys))
    except StatisticsError:
        return None


def _ranks(xs: Sequence[float]) -> list[float]:
    """The rank of each number from 0; equal numbers get the mean of theirs."""
    order = sorted(range(len(xs)), key=lambda i: xs[i])
    ranks = [0.0] * len(xs)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and xs[order[end]] == xs[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + end - 1) / 2
        start = end
    return ranks
