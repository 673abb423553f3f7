"""Every answer of an evaluation, as text: ledger/completions_000040.parquet. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from telescope.ledger.schema import CHECKSUM, METADATA, checksum_of
from telescope.ledger.table import save_table


@dataclass(frozen=True)
class Completion:
    """An answer to a held-out prompt, with its score."""

    set: str
    """Name of the evaluation set; empty: the run's own held-out prompts."""
    kind: str
    """greedy, sampled, or pass@k: one of the samples of that metric."""
    prompt_index: int
    prompt: str
    response: str
    score: float
    correct: bool
    parts: dict[str, float]
    """The scores of the reward's parts."""


_SCHEMA = pa.schema(
    {
        "set": pa.string(),
        "kind": pa.string(),
        "prompt_index": pa.int32(),
        "prompt": pa.string(),
        "response": pa.string(),
        "score": pa.float64(),
        "correct": pa.bool_(),
        "parts": pa.map_(pa.string(), pa.float64()),
    }
)


def save_completions(
    completions: Sequence[Completion], path: Path, step: int | None = None
) -> None:
    """Writes one row per answer. `step`: the step of the run that was evaluated."""
    rows = [asdict(each) | {"parts": list(each.parts.items())} for each in completions]
    table = pa.Table.from_pylist(rows, _SCHEMA)
    meta = json.dumps({} if step is None else {"step": step}).encode()
    checksum = checksum_of(meta, table.schema, table.num_rows)
    save_table(table.replace_schema_metadata({METADATA: meta, CHECKSUM: checksum}), path)
