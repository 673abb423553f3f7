"""μ and σ of a watched batch, before the rows that are not recorded are dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from telescope.explain.settings import Settings
from telescope.peers.rows import Array, WatchedStep, array_of


def batch_moments(watched: WatchedStep, settings: Settings) -> tuple[float, float] | None:
    """μ and σ of the raw advantages over all valid tokens; None where they are not known.

    The raw advantages are given, or they are R − V.
    """
    if not settings.whiten:
        return None
    raw = _raw_advantages(watched)
    if raw is None:
        return None
    chosen = [row[mask > 0] for row, mask in zip(raw, watched.mask, strict=True)]
    return _moments(np.concatenate(chosen)) if chosen else None


def _raw_advantages(watched: WatchedStep) -> list[Array] | None:
    columns = watched.columns
    if "advantages" in columns:
        return columns["advantages"]
    if "returns" in columns and "values" in columns:
        pairs = zip(columns["returns"], columns["values"], strict=True)
        return [returns - values for returns, values in pairs]
    return None


def given_moments(given: Mapping[str, Any], settings: Settings) -> tuple[float, float] | None:
    """The same from [B, T] arrays as they were given, computed where they are."""
    names = ("advantages",) if given.get("advantages") is not None else ("returns", "values")
    columns = [given.get(name) for name in names]
    mask = given.get("mask")
    if not settings.whiten or mask is None or any(not hasattr(c, "shape") for c in columns):
        return None
    raw: Any = columns[0] if len(columns) == 1 else columns[0] - columns[1]  # type: ignore[operator]
    return _moments(array_of(raw[mask > 0]))


def _moments(numbers: Array) -> tuple[float, float] | None:
    """As `explain.arithmetic.moments`, for many numbers."""
    flat = numbers.astype(np.float64)
    if not len(flat):
        return None
    variance = flat.var(ddof=1) if len(flat) > 1 else 0.0
    return float(flat.mean()), float(np.sqrt(variance + 1e-8))
