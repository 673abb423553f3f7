"""Prompts from parquet and jsonl files.

A file has a `prompt` column (text or chat messages) and whatever else the reward needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError


def read_rows(files: Sequence[str], prompt_key: str = "prompt") -> list[dict[str, Any]]:
    """All rows of the files, in order.

    verl's `reward_model.ground_truth` is also there as `ground_truth`.
    """
    rows = []
    for name in files:
        rows += _read(Path(name), prompt_key)
    for row in rows:
        nested = row.get("reward_model")
        if isinstance(nested, dict) and "ground_truth" in nested:
            row.setdefault("ground_truth", nested["ground_truth"])
    return rows


def _read(path: Path, prompt_key: str) -> list[dict[str, Any]]:
    if not path.is_file():
        raise TelescopeError(f"no data file {path}: check data.files and data.eval_files")
    rows = _read_parquet(path) if path.suffix == ".parquet" else _read_jsonl(path)
    if not rows:
        raise TelescopeError(f"{path} holds no rows: it needs at least one prompt")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(prompt_key), (str, list)):
            raise TelescopeError(
                f"{path}, row {number}: no usable `{prompt_key}` (text or a list of messages); "
                f"its columns are {', '.join(row)}; set data.prompt_key to the right one"
            )
    return rows


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (arrow.ArrowInvalid, OSError) as error:
        first = str(error).splitlines()[0]
        raise TelescopeError(f"{path} is not a readable parquet file: {first}") from None
    return rows


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise TelescopeError(
                    f"{path}, line {number} is not JSON: {error} "
                    "(what is not .parquet is read as lines of JSON)"
                ) from None
            if not isinstance(row, dict):
                raise TelescopeError(
                    f"{path}, line {number} is not an object: "
                    "each line is one {...} with a prompt"
                )
            rows.append(row)
    return rows
