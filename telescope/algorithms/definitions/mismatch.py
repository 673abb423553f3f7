"""Corrections for a sampler whose probabilities differ from the trainer's, on plain numbers.

g = log π_old − log π_sampler of a token; e^g is the ratio π_old/π_sampler. A correction leaves
tokens out of the update (rejection), weighs their loss (importance weight), or both.
telescope.algorithms.mismatch has the same on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from telescope.algorithms.definitions.base import clamp

LOG_LIMIT = 20.0
"""|g| counts as at most this: e^20 is 5e8, and exp cannot overflow."""


@dataclass(frozen=True)
class Rejection:
    """What `actor.reject` measures of a token or of its response.

    k1 bounds the ratio on both sides. k2 = ½g² and k3 = e^g − 1 − g are never negative, and have
    only an upper bound. The names with k2 and k3 are verl's.
    """

    name: str
    over: Literal["token", "sum", "mean", "max"]
    """The token itself, or the sum, mean or maximum over the response's tokens."""
    estimate: Literal["k1", "k2", "k3"]
    formula: str
    """What is bounded."""


REJECTIONS = {
    found.name: found
    for found in (
        Rejection("token", "token", "k1", "π_old/π_sampler"),
        Rejection("sequence", "sum", "k1", "Π π_old/π_sampler"),
        Rejection("geometric", "mean", "k1", "the geometric mean of π_old/π_sampler"),
        Rejection("token_k2", "token", "k2", "k2"),
        Rejection("token_k3", "token", "k3", "k3"),
        Rejection("seq_sum_k2", "sum", "k2", "Σ k2"),
        Rejection("seq_sum_k3", "sum", "k3", "Σ k3"),
        Rejection("seq_mean_k2", "mean", "k2", "the mean of k2"),
        Rejection("seq_mean_k3", "mean", "k3", "the mean of k3"),
        Rejection("seq_max_k2", "max", "k2", "the largest k2"),
        Rejection("seq_max_k3", "max", "k3", "the largest k3"),
    )
}
"""By name: the values of `actor.reject` besides off."""


def _estimate(g: float, kind: str) -> float:
    if kind == "k1":
        return g
    g = clamp(g, -LOG_LIMIT, LOG_LIMIT)
    return 0.5 * g * g if kind == "k2" else math.expm1(g) - g


def measured(gaps: Sequence[float], rejection: Rejection) -> list[float]:
    """The measure of each token of a response; log ratios for k1."""
    numbers = [_estimate(g, rejection.estimate) for g in gaps]
    if rejection.over == "token" or not numbers:
        return numbers
    of_row = max(numbers) if rejection.over == "max" else math.fsum(numbers)
    if rejection.over == "mean":
        of_row /= len(numbers)
    return [of_row] * len(numbers)


def kept(gaps: Sequence[float], s: Any) -> list[bool]:
    """Which tokens of a response stay in the update, with the settings of the actor."""
    found = [True] * len(gaps)
    if s.reject != "off":
        rejection = REJECTIONS[s.reject]
        low = math.log(s.reject_low) if rejection.estimate == "k1" else 0.0
        high = math.log(s.reject_high) if rejection.estimate == "k1" else s.reject_high
        found = [low <= x <= high for x in measured(gaps, rejection)]
    if s.reject_outlier is not None and _has_outlier(gaps, s.reject_outlier):
        found = [False] * len(gaps)
    return found


def _has_outlier(gaps: Sequence[float], limit: float) -> bool:
    return any(abs(g) > math.log(limit) for g in gaps)


def why_rejected(gaps: Sequence[float], s: Any) -> str:
    """The condition that a rejected token does not meet, as text."""
    if s.reject_outlier is not None and _has_outlier(gaps, s.reject_outlier):
        limit = f"{s.reject_outlier:g}"
        return f"π_old/π_sampler of a token of the response is not in [1/{limit}, {limit}]"
    rejection = REJECTIONS[s.reject]
    if rejection.estimate == "k1":
        return f"{rejection.formula} is not in [{s.reject_low:g}, {s.reject_high:g}]"
    return f"{rejection.formula} is above {s.reject_high:g}"


def weight(ratio: float, s: Any) -> float:
    """The importance weight of a ratio π_old/π_sampler."""
    if s.importance_mode == "mask":
        return ratio if s.importance_low <= ratio <= s.importance_cap else 0.0
    return clamp(ratio, s.importance_low, s.importance_cap)


def is_off_policy(gaps: Sequence[float], advantage: float, threshold: float) -> bool:
    """Whether a token with A < 0 stands in a response that the policy has left behind.

    A gap is log π_sampler − log π of one token. DeepSeek-AI 2025, arXiv:2512.02556, equation 9.
    """
    return advantage < 0 and math.fsum(gaps) / max(len(gaps), 1) > threshold
