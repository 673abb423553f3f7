"""μ and σ of a watched batch, before the rows that are not recorded are dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from telescope.explain.arithmetic import fill
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.peers.rows import Array, WatchedStep, array_of
from telescope.peers.rules import EXACT, raw_rows, same

MOST_TOKENS = 100_000
"""Tokens of a batch whose advantages are recomputed: a second or two, in the background."""


def batch_moments(watched: WatchedStep, settings: Settings) -> tuple[float, float] | None:
    """μ and σ of the raw advantages over all valid tokens; None where they are not known.

    The raw advantages are given, or they are R − V.
    """
    if not settings.whiten:
        return None
    rows = raw_rows(watched) or _recomputed(watched, settings)
    if not rows:
        return None
    raw, used = np.concatenate(rows), watched.flat("whitened")
    found = _moments(raw)
    if used is None or found is None or _share_off(raw, used, found) < 0.5:
        return found
    return _without_outliers(raw, used) or found


def _share_off(raw: Array, used: Array, found: tuple[float, float]) -> float:
    """The share of the whitened advantages that do not have this μ and σ."""
    off = np.abs((raw - found[0]) / found[1] - used)
    return float((off > EXACT * np.maximum(1.0, np.abs(used))).mean())


def _without_outliers(raw: Array, used: Array) -> tuple[float, float] | None:
    """μ and σ from the whitened advantages, if those are whitened: mean 0 and σ 1.

    A wrong number among the raw ones shifts their own μ and σ, and all others would look wrong.
    """
    half = len(used) // 2
    if half < 2 or not same(np.array(_moments(used)), np.array([0.0, 1.0])):
        return None
    order = np.argsort(used)
    low, high = order[:half], order[-half:]
    std = float(np.median((raw[high] - raw[low]) / (used[high] - used[low])))
    mean = float(np.median(raw - std * used))
    return (mean, std) if std > 0 and _share_off(raw, used, (mean, std)) < 0.5 else None


def _recomputed(watched: WatchedStep, settings: Settings) -> list[Array] | None:
    """A of each row as it follows from the other columns, where that is not too much work."""
    if "whitened" not in watched.columns or sum(map(len, watched.responses)) > MOST_TOKENS:
        return None
    made = []
    for row, mask in enumerate(watched.mask):
        columns = {n: rows[row].tolist() for n, rows in watched.columns.items() if n != "whitened"}
        ids = watched.responses[row].tolist()
        sample = Sample(ids, [b""] * len(ids), mask.tolist(), columns, settings=settings, run="-")
        after = watched.bootstrap[row] if watched.bootstrap else 0.0
        full = fill(replace(sample, bootstrap=after))
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
