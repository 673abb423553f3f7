"""A step's numbers, all samples one after the other: what the page draws and recomputes from."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from telescope.ledger import reader as ledger

Numbers = npt.NDArray[np.float32]

FLOATS = (
    "token_level_rewards",
    "values",
    "deltas",
    "advantages",
    "whitened",
    "returns",
    "kl",
    "entropy",
    "baselines",
    "attention",
)
"""Columns of the ledger that the page gets, where a run recorded them."""
OF_A_CRITIC = ("values", "deltas")
"""Without a critic they are zeros, or follow from zeros: they are left out."""


def has_critic(table: pa.Table) -> bool:
    """Whether V means something: the estimator needs a critic, or some V is not 0.

    The second is for an estimator whose definition is not here.
    """
    if ledger.settings_of(table).estimator_definition.needs.critic:
        return True
    values = lists_of(table, "values")
    return values is not None and bool(flat_numbers(values).any())


def lists_of(table: pa.Table, name: str) -> pa.ListArray | None:
    """A column with a list per sample; None if it was not recorded."""
    return table.column(name).combine_chunks() if name in table.column_names else None


def per_sample(table: pa.Table, name: str) -> list[Any] | None:
    """A column with one entry per sample; None if it was not recorded."""
    return table.column(name).to_pylist() if name in table.column_names else None


def numbers_per_row(lists: pa.ListArray) -> list[Numbers]:
    """Each row's numbers, flags as 0 and 1."""
    flat = flat_numbers(lists)
    return [flat[i:j] for i, j in itertools.pairwise(offsets_of(lists))]


def masks_of(table: pa.Table) -> list[npt.NDArray[np.bool_]]:
    """Which tokens of each sample the policy wrote."""
    return [mask > 0 for mask in numbers_per_row(lists_of(table, "response_mask"))]


def values_of(table: pa.Table) -> list[Numbers] | None:
    """V of each sample; None if it was not recorded."""
    values = lists_of(table, "values")
    return None if values is None else numbers_per_row(values)


def token_columns(
    table: pa.Table, names: Iterable[str], *, critic: bool = True
) -> dict[str, Numbers]:
    """Those of the columns that have a number for every token, all samples one after the other.

    `critic`: V means something.
    """
    offsets = offsets_of(lists_of(table, "response_mask"))
    found = {}
    for name in names:
        lists = lists_of(table, name) if critic or name not in OF_A_CRITIC else None
        if lists is not None and offsets_of(lists) == offsets:
            found[name] = flat_numbers(lists)
    return found


def flat_numbers(lists: pa.ListArray) -> Numbers:
    """The numbers of all rows, one after the other. What is null is NaN.

    By hand, because Arrow's to_numpy first imports pandas, which takes a third of a second.
    """
    values = lists.flatten().cast(pa.float32())
    if values.null_count:
        values = values.fill_null(float("nan"))
    flat = np.frombuffer(values.buffers()[1] or b"", np.float32)
    return flat[values.offset : values.offset + len(values)]


def offsets_of(lists: pa.ListArray) -> list[int]:
    """Where each row begins among the numbers of all rows, and where the last one ends."""
    lengths = lists.value_lengths().fill_null(0).to_pylist()
    return list(itertools.accumulate(lengths, initial=0))


def last_update(table: pa.Table, *names: str) -> dict[str, list[Numbers]] | None:
    """Per-token terms of each sample's last actor update; empty for a sample without one.

    None if the table has no updates.
    """
    updates = lists_of(table, "actor_updates")
    if updates is None:
        return None
    ends = list(itertools.pairwise(offsets_of(updates)))
    structs = updates.flatten()
    none = np.zeros(0, np.float32)
    found: dict[str, list[Numbers]] = {}
    for name in names:
        found[name] = [none for _ in ends]
        if structs.type.get_field_index(name) >= 0:  # another trainer may not have recorded it
            rows = numbers_per_row(structs.field(name))
            found[name] = [rows[end - 1] if end > start else none for start, end in ends]
    return found


def step_columns(table: pa.Table, *, critic: bool) -> dict[str, Any]:
    """The columns of all recorded samples as base64, and where each sample begins.

    A column that the run did not record is absent. `critic`: V means something.
    """
    mask = lists_of(table, "response_mask")
    offsets = offsets_of(mask)
    found = token_columns(table, FLOATS, critic=critic)
    columns = {"mask": packed(flat_numbers(mask), "uint8")}
    columns |= {name: packed(column) for name, column in found.items()}
    columns |= _of_the_update(table, offsets)
    return {
        "count": table.num_rows,
        "offsets": offsets,
        "columns": columns,
        **{name: _finite(table, name) for name in ("bootstrap", "score", "scale")},
    }


def only_samples(answer: dict[str, Any], positions: Collection[int]) -> dict[str, Any]:
    """The columns of some samples: the others keep their place and have no tokens."""
    ranges = list(itertools.pairwise(answer["offsets"]))
    kept = [span if i in positions else (0, 0) for i, span in enumerate(ranges)]
    columns = {}
    for name, column in answer["columns"].items():
        numbers = np.frombuffer(base64.b64decode(column["data"]), column["dtype"])
        chosen = np.concatenate([numbers[start:end] for start, end in kept])
        columns[name] = packed(chosen, column["dtype"])
    offsets = list(itertools.accumulate((end - start for start, end in kept), initial=0))
    return answer | {"offsets": offsets, "columns": columns}


def _of_the_update(table: pa.Table, offsets: list[int]) -> dict[str, Any]:
    """Ratio and clipped tokens of the last update; NaN and 0 for a sample without one."""
    found = last_update(table, "ratio", "clipped", "dual_clipped")
    if found is None or not any(len(row) for row in found["ratio"]):
        return {}
    ratio = np.full(offsets[-1], np.nan, np.float32)
    clipped = np.zeros(offsets[-1], np.float32)
    for i, (start, end) in enumerate(itertools.pairwise(offsets)):
        if len(found["ratio"][i]) == end - start:
            ratio[start:end] = found["ratio"][i]
        for name in ("clipped", "dual_clipped"):
            if len(found[name][i]) == end - start:
                clipped[start:end] += found[name][i]
    return {"ratio": packed(ratio), "clipped": packed(clipped > 0, "uint8")}


def packed(numbers: npt.NDArray[Any], dtype: str = "float32") -> dict[str, str]:
    """Numbers as base64 of their little-endian bytes."""
    raw = numbers.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    return {"dtype": dtype, "data": base64.b64encode(raw).decode()}


def _finite(table: pa.Table, name: str) -> list[float | None]:
    values = per_sample(table, name) or []
    return [float(f"{x:.9g}") if x is not None and np.isfinite(x) else None for x in values]
