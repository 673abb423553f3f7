"""Copies of a trainer's arrays, taken before it goes on and changes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

LARGEST = 256e6
"""Bytes that are copied of one step; of a larger batch only the first rows."""


def snapshot(given: Mapping[str, Any], at_least: int) -> tuple[dict[str, Any], bool]:
    """The arguments of `record` on the CPU, and whether all rows are there.

    Arrays keep their type and their padding. A batch of more than LARGEST bytes is cut to its first
    rows, but never below `at_least`.
    """
    rows = len(given["responses"])
    size = size_of(given)
    kept = rows if size <= LARGEST else max(at_least, int(rows * LARGEST / size))
    whole = kept >= rows
    return {
        name: _copy(value if whole else _first(value, rows, kept)) for name, value in given.items()
    }, whole


def size_of(given: Mapping[str, Any]) -> float:
    """Bytes of the arrays."""
    return sum(_bytes(value) for value in given.values())


def _first(value: Any, rows: int, kept: int) -> Any:
    is_per_row = hasattr(value, "__len__") and len(value) == rows
    return value[:kept] if is_per_row else value


def _bytes(value: Any) -> float:
    if hasattr(value, "nbytes"):
        return float(value.nbytes)
    if isinstance(value, list | tuple) and value and hasattr(value[0], "nbytes"):
        return float(sum(row.nbytes for row in value))
    return 0.0


def _copy(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple):
        return [_copy(row) for row in value]
    return copy.copy(value)
