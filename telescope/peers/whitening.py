"""μ and σ of a watched batch, before the rows that are not recorded are dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from telescope.explain.arithmetic import fill
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.peers.rows import Array, WatchedStep, array_of
from telescope.peers.rules import raw_rows

MOST_TOKENS = 100_000
"""Tokens of a batch whose advantages are recomputed: a second or two, in the background."""


def batch_moments(watched: WatchedStep, settings: Settings) -> tuple[float, float] | None:
    """μ and σ of the raw advantages over all valid tokens; None where they are not known.

    The raw advantages are given, or they are R − V.
    """
    if not settings.whiten:
        return None
    raw = raw_rows(watched) or _recomputed(watched, settings)
    return _moments(np.concatenate(raw)) if raw else None


def _recomputed(watched: WatchedStep, settings: Settings) -> list[Array] | None:
    """A of each row as it follows from the other columns, where that is not too much work."""
    if "whitened" not in watched.columns or sum(map(len, watched.responses)) > MOST_TOKENS:
        return None
    made = []
    for row, mask in enumerate(watched.mask):
        columns = {n: rows[row].tolist() for n, rows in watched.columns.items() if n != "whitened"}
        ids = watched.responses[row].tolist()
        full = fill(
            Sample(ids, [b""] * len(ids), mask.tolist(), columns, settings=settings, run="-")
        )
        if "advantages" not in full.columns:
            return None
        made.append(np.asarray(full.columns["advantages"], np.float64)[mask > 0])
    return made


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
