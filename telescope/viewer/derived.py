"""δ and A of a trainer that records only what they follow from: its rewards and values."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from telescope.explain.arithmetic import fill
from telescope.explain.sample import Sample
from telescope.ledger import reader as ledger

DERIVED = ("deltas", "advantages")
NEEDED = ("token_level_rewards", "values")


def lacks(recorded: Collection[str]) -> list[str]:
    """Those of δ and A that were not recorded but follow."""
    follows = all(name in recorded for name in NEEDED)
    return [name for name in DERIVED if follows and name not in recorded]


def with_derived(sample: Sample) -> dict[str, list[float]]:
    """The sample's columns, and δ and A where they follow from them."""
    missing = lacks(sample.columns)
    if not missing or not any(sample.mask):
        return sample.columns
    full = fill(sample).columns
    return sample.columns | {name: full[name] for name in missing if name in full}


def derived_table(table: pa.Table) -> pa.Table:
    """The table with these columns; a response that the policy wrote nothing of has zeros."""
    missing = lacks(table.column_names)
    if not missing:
        return table
    samples = [ledger.sample_of(table, row) for row in range(table.num_rows)]
    made = [(sample, with_derived(sample)) for sample in samples]
    for name in missing:
        if all(name in columns for sample, columns in made if any(sample.mask)):
            rows = [columns.get(name, [0.0] * len(sample)) for sample, columns in made]
            table = table.append_column(name, pa.array(rows, pa.list_(pa.float32())))
    return table
