"""V along right and wrong answers: the mean and the spread at each part of the answer.

With γ = 1 and no reward before the end the true V is a martingale: it has no trend over all
answers, rises on those that come out right and falls on those that come out wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from telescope.viewer.columns import Numbers, masks_of, values_of
from telescope.viewer.payload import number_of

POINTS = 11
"""Parts of an answer at which V is read: 0 %, 10 %, … of its tokens."""


def value_paths(table: pa.Table, correct_score: float) -> dict[str, Any] | None:
    """{"right": …, "wrong": …}, each with the mean and σ of V at every part, and how many answers.

    None if no critic gave values.
    """
    values = values_of(table)
    if values is None:
        return None
    scores = table.column("score").to_pylist()
    paths: dict[str, list[Numbers]] = {"right": [], "wrong": []}
    for v, mask, score in zip(values, masks_of(table), scores, strict=True):
        written = v[mask]
        if len(written) and np.isfinite(written).all() and score is not None:
            side = "right" if score >= correct_score else "wrong"
            paths[side].append(_at_every_part(written))
    every = [path for found in paths.values() for path in found]
    if not any(path.any() for path in every):
        return None
    return {side: _summary(found) for side, found in paths.items()}


def _at_every_part(values: Numbers) -> Numbers:
    """V at each part of one answer, between two tokens by a straight line."""
    parts = np.linspace(0.0, 1.0, POINTS)
    own = np.linspace(0.0, 1.0, len(values))
    return np.interp(parts, own, values).astype(np.float32)


def _summary(paths: Sequence[Numbers]) -> dict[str, Any]:
    if not paths:
        return {"count": 0, "mean": [], "spread": []}
    stacked = np.stack(paths).astype(np.float64)
    return {
        "count": len(paths),
        "mean": [number_of(x, 4) for x in stacked.mean(0).tolist()],
        "spread": [number_of(x, 4) for x in stacked.std(0).tolist()],
    }
