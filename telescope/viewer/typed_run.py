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
from telescope.explain.settings import Settings
from telescope.ledger.reader import path_of
from telescope.ledger.schema import METADATA, SCHEMA, VERSION

_NAMES = {"index": "sample", "token_ids": "responses", "mask": "response_mask"}
"""Fields of a sample that a ledger calls otherwise."""


def write_run(run: Path, batch: Sequence[Sample]) -> Path:
    """Writes the batch as step 0 of a new run, with every column that follows. Returns the run."""
    path_of(run, 0).parent.mkdir(parents=True)
    (run / "config.toml").write_text("steps = 0  # nothing is trained\n", "utf-8")
    write_step(run, 0, [fill(sample) for sample in batch])
    return run


def write_step(run: Path, step: int, batch: Sequence[Sample]) -> None:
    """Writes the ledger file of a step."""
    schema = schema_of(run.name, step, batch[0].settings)
    table = pa.Table.from_pylist([_row(sample) for sample in batch], schema)
    path = path_of(run, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def schema_of(run: str, step: int, settings: Settings) -> pa.Schema:
    """The ledger's columns, with what is said of the whole step."""
    meta = {"version": VERSION, "run": run, "step": step, "settings": settings.to_json()}
    return SCHEMA.with_metadata({METADATA: json.dumps(meta).encode()})


def _row(sample: Sample) -> dict[str, Any]:
    """A row of the ledger. Names that the ledger does not have are left out by its schema."""
    fields = asdict(replace(sample, settings=None))  # type: ignore[arg-type]
    renamed = {new: fields.pop(old) for old, new in _NAMES.items()}
    pairs = {name: list(fields[name].items()) for name in ("parts", "data")}
    return {**fields, **renamed, **sample.columns, **pairs}
