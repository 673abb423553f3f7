"""Reads ledger files: as Arrow tables, or as samples that can be explained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from telescope.errors import TelescopeError
from telescope.explain.sample import SAMPLE_COLUMNS, ActorUpdate, CriticUpdate, Sample
from telescope.explain.settings import Settings
from telescope.ledger.schema import METADATA, VERSION


def path_of(run: Path | str, step: int) -> Path:
    return Path(run) / "ledger" / f"step_{step:06d}.parquet"


def steps(run: Path | str) -> list[int]:
    """The steps that have a ledger file, in order; other files are left alone."""
    names = [
        re.fullmatch(r"step_([0-9]{6,})\.parquet", path.name)
        for path in (Path(run) / "ledger").glob("step_*.parquet")
    ]
    return sorted(int(name[1]) for name in names if name)


def read(run: Path | str, step: int, columns: list[str] | None = None) -> pa.Table:
    """What was recorded for a step (all of it, or some columns): one row per response, lists per token."""
    return _open(run, step).read(columns)


def samples(run: Path | str, step: int, index: list[int] | None = None) -> list[Sample]:
    """The responses recorded for a step (those at `index`, in that order) as samples."""
    table = read(run, step)
    wanted = range(table.num_rows) if index is None else index
    outside = [i for i in wanted if not 0 <= i < table.num_rows]
    if outside:
        raise TelescopeError(
            f"step {step} of {run} has samples 0 to {table.num_rows - 1}; there is no {outside[0]}"
        )
    return [sample_of(table, i) for i in wanted]


def sample_of(table: pa.Table, index: int) -> Sample:
    """One row of a ledger table as a sample."""
    return _sample(
        table.slice(index, 1).to_pylist()[0],
        json.loads(table.schema.metadata[METADATA]),
        index,
        table.num_rows,
    )


def _open(run: Path | str, step: int) -> parquet.ParquetFile:
    path = path_of(run, step)
    try:
        file = parquet.ParquetFile(path)
    except FileNotFoundError:
        there = steps(run)
        has = (
            f"it has steps {there[0]} to {there[-1]}"
            if there
            else "it has no ledger (ledger.samples = off?)"
        )
        raise TelescopeError(f"no ledger of step {step} in {run}: {has}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise TelescopeError(
            f"{path} cannot be read: {str(error).splitlines()[0]}; another step may be whole (explain: --step)"
        ) from None
    version = json.loads((file.schema_arrow.metadata or {}).get(METADATA, b"{}")).get("version", 0)
    if version > VERSION:
        raise TelescopeError(
            f"{path} was written by a newer Telescope (ledger version {version}, this one reads {VERSION}): update it"
        )
    return file


def _sample(row: dict[str, Any], meta: dict[str, Any], index: int, count: int) -> Sample:
    return Sample(
        token_ids=row["responses"],
        token_bytes=row["token_bytes"],
        mask=row["response_mask"],
        columns={name: row[name] for name in SAMPLE_COLUMNS if row.get(name) is not None},
        settings=Settings.recorded(meta["settings"]),
        run=meta["run"],
        step=meta["step"],
        index=index,
        count=count,
        policy_version=row["policy_version"],
        prompt=row["prompt"],
        prompt_index=row["prompt_index"],
        response=row["response"],
        score=row["score"],
        parts=dict(row["parts"]),
        truncated=row["truncated"],
        bootstrap=row["bootstrap"],
        scale=row.get("scale"),
        whiten_mean=row["whiten_mean"],
        whiten_std=row["whiten_std"],
        actor_updates=[ActorUpdate(**update) for update in row["actor_updates"]],
        critic_updates=[CriticUpdate(**update) for update in row["critic_updates"]],
    )
