"""A run of one step made from numbers typed by hand, so that the whole page works on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from telescope.explain.arithmetic import fill
from telescope.explain.sample import Sample
from telescope.ledger.reader import path_of
from telescope.ledger.schema import METADATA, SCHEMA, VERSION

_NAMES = {"index": "sample", "token_ids": "responses", "mask": "response_mask"}
"""Fields of a sample that a ledger calls otherwise."""


def write_run(run: Path, batch: Sequence[Sample]) -> Path:
    """Writes the batch as step 0 of a new run, with every column that follows. Returns the run."""
    meta = {
        "version": VERSION,
        "run": run.name,
        "step": 0,
        "settings": batch[0].settings.to_json(),
    }
    schema = SCHEMA.with_metadata({METADATA: json.dumps(meta).encode()})
    path = path_of(run, 0)
    path.parent.mkdir(parents=True)
    (run / "config.toml").write_text("steps = 0  # nothing is trained\n", "utf-8")
    rows = [_row(fill(sample)) for sample in batch]
    parquet.write_table(pa.Table.from_pylist(rows, schema), path)
    return run


def _row(sample: Sample) -> dict[str, Any]:
    """A row of the ledger. Names that the ledger does not have are left out by its schema."""
    fields = asdict(replace(sample, settings=None))  # type: ignore[arg-type]
    renamed = {new: fields.pop(old) for old, new in _NAMES.items()}
    return {**fields, **renamed, **sample.columns, "parts": list(sample.parts.items()), "data": []}
