"""μ and σ of a watched batch, before the rows that are not recorded are dropped."""

from __future__ import annotations

import numpy as np

from telescope.explain.arithmetic import moments
from telescope.explain.settings import Settings
from telescope.peers.rows import Array, WatchedStep


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
    flat = np.concatenate(chosen).astype(np.float64) if chosen else np.zeros(0)
    return moments(flat.tolist()) if len(flat) else None


def _raw_advantages(watched: WatchedStep) -> list[Array] | None:
    columns = watched.columns
    if "advantages" in columns:
        return columns["advantages"]
    if "returns" in columns and "values" in columns:
        pairs = zip(columns["returns"], columns["values"], strict=True)
        return [returns - values for returns, values in pairs]
    return None
