"""The header of a run: accuracy, the sample to begin with, and the colour scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from telescope.viewer.columns import last_update, token_columns
from telescope.viewer.payload import number_of
from telescope.viewer.series import Metrics

ACCURACIES = ("eval/greedy_accuracy", "eval/sampled_accuracy")
"""Metrics that tell how often held-out answers are right, the preferred one first."""
SCALED = (
    "whitened",
    "advantages",
    "deltas",
    "values",
    "returns",
    "kl",
    "token_level_rewards",
    "entropy",
)
NOTHING = 1e-3
"""A critic whose |V| is smaller expects nothing."""
PERCENTILE = 98
"""A colour scale ends at this percentile of |x|, so that a few outliers do not fade the rest."""


def accuracy_of(metrics: Metrics) -> dict[str, Any] | None:
    """Held-out accuracy before training, now and at its best, each as [step, value]."""
    for name in ACCURACIES:
        series = metrics.series.get(name)
        if series:
            points = series.to_json()
            pairs = list(zip(points["steps"], points["values"], strict=True))
            best = max(pairs, key=lambda pair: pair[1])
            return {"metric": name, "before": pairs[0], "now": pairs[-1], "best": best}
    return None


def spread_steps(steps: list[int]) -> list[int]:
    """A few steps that stay the same while a run grows: number 0, 1, 3, 7, 15, … of them."""
    places = (2**k - 1 for k in range(32))
    return [steps[place] for place in places if place < len(steps)]


def scales_of_step(table: pa.Table, *, critic: bool) -> dict[str, float]:
    """The PERCENTILE of |x| of every quantity of one step; of |ρ − 1| for the ratio."""
    columns = token_columns(table, ("response_mask", *SCALED), critic=critic)
    mask = columns.pop("response_mask") > 0
    found: dict[str, float] = {}
    for name, numbers in columns.items():
        _keep_scale(found, name, numbers[mask])
    update = last_update(table, "ratio")
    if update is not None:
        ratios = [row for row in update["ratio"] if len(row)]
        if ratios:
            _keep_scale(found, "ratio", np.concatenate(ratios) - 1.0)
    return found


def _keep_scale(found: dict[str, float], name: str, numbers: Any) -> None:
    sizes = np.abs(numbers[np.isfinite(numbers)])
    scale = float(np.percentile(sizes, PERCENTILE)) if len(sizes) else 0.0
    if scale > 0:
        found[name] = scale


def joined_scales(steps: list[dict[str, float]]) -> dict[str, float | None]:
    """One scale per quantity for the run: the largest of those of its steps."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: number_of(max(step.get(name, 0.0) for step in steps), 3) for name in names}


def instructive_row(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row from which most is to be learnt: a wrong answer with a large |A|.

    A right one if none is wrong. An answer that was cut off, or is very long, only if there is no
    other.
    """
    return min(rows, key=_rank, default=None)


def is_surprising(row: dict[str, Any]) -> bool:
    """Whether the answer is wrong although the critic expected much.

    An untrained critic expects nothing, so that a wrong answer is no surprise.
    """
    least = max(row["max_abs_a"] or 0.0, NOTHING)
    expected = row["v0"] is None or 2 * abs(row["v0"]) >= least
    return expected and not row["right"] and not row["truncated"]


def _rank(row: dict[str, Any]) -> tuple[bool, bool, bool, float]:
    """Smaller is better. A large |A| teaches little where the critic expected nothing."""
    usual = 2 <= row["written"] <= 400
    surprise = row["max_abs_a"] or 0.0
    if row.get("v0") is not None:
        surprise = min(surprise, abs(row["v0"]))
    return row["right"], row["truncated"], not usual, -surprise
