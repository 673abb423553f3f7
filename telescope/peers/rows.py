"""Arrays of any trainer, brought into one shape: one list per response, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from telescope.batch import COLUMNS
from telescope.errors import TelescopeError

Array = npt.NDArray[Any]
Rows = Any
"""One list of numbers per response, or a [B, T] array or tensor."""

TOKEN_COLUMNS = tuple(
    name
    for name, column in COLUMNS.items()
    if column.anchor in ("action", "state") and column.dtype == "float"
)
"""Columns with one number per token, under our names. verl's are the same."""

_PER_ROW = {
    "texts": str,
    "pieces": list,
    "scores": float,
    "parts": dict,
    "truncated": bool,
    "bootstrap": float,
    "scale": float,
}
"""Fields with one entry per response, and the type of an entry."""

HALF = {"bfloat16": 2**-8, "float16": 2**-11}
"""Type of half precision -> half a unit of its last digit, relative to the number."""


@dataclass(frozen=True)
class WatchedStep:
    """What a trainer knows about one step. What it does not know is absent, never zero."""

    responses: list[Array]
    """Token ids of each response, without padding."""
    mask: list[Array]
    """1 = the policy wrote the token; 0 = a tool did."""
    columns: dict[str, list[Array]] = field(default_factory=dict)
    """Column -> one array per response, as long as the response."""
    log_probs: list[Array] | None = None
    """Of the policy during its last update: the ratio follows from them."""
    prompt_ids: list[Array] | None = None
    prompts: list[str] | None = None
    texts: list[str] | None = None
    pieces: list[list[str]] | None = None
    """What each token reads, where there is no tokenizer."""
    scores: list[float | None] | None = None
    parts: list[dict[str, float]] | None = None
    truncated: list[bool] | None = None
    group: list[int] | None = None
    bootstrap: list[float] | None = None
    scale: list[float] | None = None
    """What an estimator without a critic divided by."""

    def __len__(self) -> int:
        return len(self.responses)

    def first(self, count: int) -> WatchedStep:
        """The first responses of the step."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        columns = given.pop("columns")
        return replace(
            self,
            columns={name: rows[:count] for name, rows in columns.items()},
            **{name: rows[:count] for name, rows in given.items()},
        )

    def written(self, name: str) -> list[Array] | None:
        """A column's numbers on the tokens that the policy wrote, row by row."""
        rows = self.columns.get(name)
        if rows is None:
            return None
        return [row[m > 0].astype(np.float64) for row, m in zip(rows, self.mask, strict=True)]

    def flat(self, name: str) -> Array | None:
        """The same, one row after the other."""
        rows = self.written(name)
        return None if rows is None else np.concatenate(rows)


def array_of(rows: Any) -> Array:
    """A tensor of any device and type, an array or a list, as a numpy array."""
    if hasattr(rows, "detach"):
        rows = rows.detach()
        if rows.dtype.is_floating_point:
            rows = rows.float()  # numpy has no bfloat16
        return np.asarray(rows.cpu().numpy())
    return np.asarray(rows)


def rounding_of(given: Mapping[str, Any]) -> dict[str, float]:
    """Column in half precision -> how far a number may be off by rounding, relative to itself."""
    found = {}
    for name in TOKEN_COLUMNS:
        rows = given.get(name)
        first = rows[0] if isinstance(rows, list | tuple) and rows else rows
        kind = str(getattr(first, "dtype", "")).removeprefix("torch.")
        if kind in HALF:
            found[name] = HALF[kind]
    return found


def ragged(name: str, rows: Rows, lengths: Sequence[int] | None, offset: int = 0) -> list[Array]:
    """One array per response.

    Rows of a [B, T] array are cut to `lengths`, from slot `offset` on; lists must have the length.
    """
    if not hasattr(rows, "shape") and all(hasattr(row, "__len__") for row in rows):
        arrays = [array_of(row) for row in rows]
    else:
        whole = array_of(rows)
        if whole.ndim != 2:
            raise TelescopeError(f"{name} has {whole.ndim} dimensions: give [responses, tokens]")
        arrays = list(whole)
    if lengths is None:
        return arrays
    if len(arrays) != len(lengths):
        raise TelescopeError(f"{name} has {len(arrays)} rows, but there are {len(lengths)} answers")
    return [
        _cut(f"{name}[{i}]", row, length, offset)
        for i, (row, length) in enumerate(zip(arrays, lengths, strict=True))
    ]


def _cut(name: str, row: Array, length: int, offset: int) -> Array:
    if len(row) < offset + length:
        raise TelescopeError(f"{name} has {len(row)} tokens, but the answer has {length}")
    return row[offset : offset + length]


def lengths_of(mask: Sequence[Array]) -> list[int]:
    """Length of each response: up to the last token that the policy wrote."""
    return [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 0 for row in mask]


def watched_step(
    *,
    responses: Rows,
    mask: Rows | None = None,
    lengths: Sequence[int] | None = None,
    log_probs: Rows | None = None,
    prompts: Rows | None = None,
    group: Any | None = None,
    **given: Any,
) -> WatchedStep:
    """Checks and cuts the arrays of `record`: `given` are columns, and fields of `_PER_ROW`."""
    columns = {name: given[name] for name in given if name not in _PER_ROW}
    unknown = sorted(set(columns) - set(TOKEN_COLUMNS))
    if unknown:
        known = ", ".join(TOKEN_COLUMNS)
        raise TelescopeError(f"no column {unknown[0]!r}; columns are {known}")
    masks = None if mask is None else ragged("mask", mask, None)
    if lengths is None and masks is not None and hasattr(responses, "shape"):
        lengths = lengths_of(masks)
    ids = ragged("responses", responses, lengths)
    sizes = [len(row) for row in ids]
    found = [np.ones(size, np.int32) for size in sizes]
    if masks is not None:
        found = ragged("mask", masks, sizes)
    starts = [int(np.flatnonzero(row)[0]) if np.any(row) else 0 for row in found]

    def answers(name: str, rows: Rows) -> list[Array]:
        """Each row from its first written token on: what is before it is padding on the left."""
        pairs = zip(ragged(name, rows, sizes), starts, strict=True)
        return [row[start:] for row, start in pairs]

    ids_of_prompts, words = _prompts(prompts, len(ids))
    return WatchedStep(
        responses=answers("responses", ids),
        mask=[(row > 0).astype(np.int32) for row in answers("mask", found)],
        columns={name: answers(name, rows) for name, rows in columns.items() if rows is not None},
        log_probs=None if log_probs is None else answers("log_probs", log_probs),
        prompt_ids=ids_of_prompts,
        prompts=words,
        group=_groups(group, len(ids)),
        **{
            name: _per_row(name, given.get(name), len(ids), kind) for name, kind in _PER_ROW.items()
        },
    )


def _prompts(prompts: Any, count: int) -> tuple[list[Array] | None, list[str] | None]:
    """Prompts as ids or as texts, whichever they are."""
    if prompts is None:
        return None, None
    if len(prompts) != count:
        raise TelescopeError(f"prompts has {len(prompts)} rows, but there are {count} answers")
    if count and isinstance(prompts[0], str):
        return None, list(prompts)
    return ragged("prompts", prompts, None), None


def _per_row(name: str, given: Any, count: int, kind: Any) -> list[Any] | None:
    if given is None:
        return None
    values = given.tolist() if hasattr(given, "tolist") else list(given)
    if len(values) != count:
        raise TelescopeError(f"{name} has {len(values)} entries, but there are {count} answers")
    return [None if value is None else kind(value) for value in values]


def _groups(given: Any, count: int) -> list[int] | None:
    """Group names of any kind as numbers, in the order in which they first appear."""
    names = _per_row("group", given, count, lambda name: name)
    if names is None:
        return None
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]
