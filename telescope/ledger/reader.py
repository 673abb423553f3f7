"""Reads ledger files: as Arrow tables, or as samples that can be explained."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as parquet

from telescope.config.paths import check_ordinary
from telescope.errors import TelescopeError
from telescope.explain.sample import SAMPLE_COLUMNS, ActorUpdate, CriticUpdate, Remark, Sample
from telescope.explain.settings import Settings
from telescope.ledger.schema import CHECKSUM, METADATA, VERSION, checksum_of

Kind = Literal["step", "eval", "completions"]
"""What a file holds: responses of a training step, or answers of an evaluation after it.

eval: greedy answers to `ledger.prompts`, token by token. completions: every answer, as text.
"""


class DamagedError(TelescopeError):
    """A file is not what was written."""


def path_of(run: Path | str, step: int, kind: Kind = "step") -> Path:
    """The ledger file of a step."""
    return Path(run) / "ledger" / f"{kind}_{step:06d}.parquet"


def steps(run: Path | str, kind: Kind = "step") -> list[int]:
    """The steps that have a ledger file, in order; other files are skipped."""
    folder = Path(run) / "ledger"
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise TelescopeError(f"cannot read {folder}: {error.strerror}") from None
    matches = (re.fullmatch(rf"{kind}_([0-9]{{6,}})\.parquet", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def files(run: Path | str) -> list[tuple[int, Kind]]:
    """Step and kind of every ledger file, for `path_of` and `read`."""
    return [(step, kind) for kind in get_args(Kind) for step in steps(run, kind)]


def read(
    run: Path | str, step: int, columns: list[str] | None = None, kind: Kind = "step"
) -> pa.Table:
    """What was recorded for a step, all of it or some columns: one row per response."""
    path = path_of(run, step, kind)
    file = _open(run, step, kind)
    with _explained(path):
        table = file.read(columns)
        table.validate(full=True)  # e.g. text that is no UTF-8
    return table.replace_schema_metadata(file.schema_arrow.metadata)  # the one that was checked


def samples(run: Path | str, step: int, index: list[int] | None = None) -> list[Sample]:
    """The responses recorded for a step as samples: all of them, or those at `index`, in order."""
    table = read(run, step)
    wanted = range(table.num_rows) if index is None else index
    outside = [i for i in wanted if not 0 <= i < table.num_rows]
    if outside:
        raise TelescopeError(
            f"step {step} of {run} has samples 0 to {table.num_rows - 1}; there is no {outside[0]}"
        )
    return [sample_of(table, i) for i in wanted]


def group(run: Path | str, step: int, index: int) -> list[Sample]:
    """The recorded responses to the prompt of response `index` of a step, in order."""
    prompts = read(run, step, ["prompt_index"])["prompt_index"].to_pylist()
    return samples(run, step, [i for i, other in enumerate(prompts) if other == prompts[index]])


def sample_of(table: pa.Table, index: int) -> Sample:
    """One row of a ledger table as a sample."""
    try:
        row = table.slice(index, 1).to_pylist()[0]
        meta = json.loads(table.schema.metadata[METADATA])
        return _sample(row, meta, index, table.num_rows)
    except (LookupError, TypeError, AttributeError) as error:  # a column or a setting is missing
        raise TelescopeError(
            f"sample {index} of this step cannot be read: its file has no usable {error}; "
            "try another step (explain: --step)"
        ) from None


def settings_of(table: pa.Table) -> Settings:
    """The settings that a ledger table was made with."""
    return Settings.recorded(json.loads(table.schema.metadata[METADATA])["settings"])


def _open(run: Path | str, step: int, kind: Kind) -> parquet.ParquetFile:
    """The file of a step, checked to be readable by this version."""
    path = path_of(run, step, kind)
    try:
        with _explained(path):
            check_ordinary(path)
            file = parquet.ParquetFile(path, page_checksum_verification=True)
            metadata = file.schema_arrow.metadata or {}
            described = metadata.get(METADATA, b"{}")
            now = checksum_of(described, file.schema_arrow, file.metadata.num_rows)
            if metadata.get(CHECKSUM, now) != now:
                raise ValueError("it is not what was written (its checksum differs)")
            written = json.loads(described)
            if written.get("step", step) != step:
                raise ValueError(f"it is the file of step {written['step']}")
            version = int(written.get("version", 0))
    except FileNotFoundError:
        recorded = steps(run, kind)
        has = "it has no ledger (ledger.samples = off?)"
        if recorded:
            has = f"it has steps {recorded[0]} to {recorded[-1]}"
        raise TelescopeError(f"no ledger of step {step} in {run}: {has}") from None
    if version > VERSION:
        raise TelescopeError(
            f"{path} was written by a newer Telescope "
            f"(ledger version {version}, this one reads {VERSION}): update Telescope"
        )
    return file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what is wrong with a file into one line. A damaged one fails in many ways."""
    try:
        yield
    except (TelescopeError, FileNotFoundError):
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        problem = (str(error) or type(error).__name__).splitlines()[0]
        raise DamagedError(
            f"{path} cannot be read: {problem}; try another step (explain: --step)"
        ) from None


def _sample(row: dict[str, Any], meta: dict[str, Any], index: int, count: int) -> Sample:
    """Row `index` of the `count` rows of a file as a sample."""
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
        policy_version=row.get("policy_version") or 0,
        prompt=row["prompt"],
        prompt_index=row["prompt_index"],
        response=row["response"],
        score=row["score"],
        parts=dict(row["parts"]),
        data=dict(row.get("data") or ()),
        truncated=bool(row.get("truncated")),
        bootstrap=row.get("bootstrap") or 0.0,
        scale=row.get("scale"),
        reward_mean=row.get("reward_mean"),
        reward_std=row.get("reward_std"),
        whiten_mean=row.get("whiten_mean"),
        whiten_std=row.get("whiten_std"),
        actor_updates=[_actor_update(update) for update in row["actor_updates"]],
        critic_updates=[CriticUpdate(**update) for update in row.get("critic_updates") or ()],
        faults=_remarks(meta.get("faults", ())),
        rules=_remarks(meta.get("rules", ())),
        assumed=tuple(meta.get("assumed", ())),
        rounding=dict(meta.get("rounding", {})),
    )


def _actor_update(update: dict[str, Any]) -> ActorUpdate:
    """An update; terms that another trainer did not record are empty, so that they are computed."""
    terms: dict[str, Any] = {"ratio": [], "clipped": [], "dual_clipped": [], "loss": []}
    return ActorUpdate(**(terms | update))


def _remarks(written: Sequence[Mapping[str, Any]]) -> tuple[Remark, ...]:
    return tuple(Remark(zh=str(each["zh"]), en=str(each["en"])) for each in written)
