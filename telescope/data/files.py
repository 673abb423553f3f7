"""Prompts from files (jsonl, csv, parquet) and from data sets on the hub.

A row has a `prompt` column (text or chat messages) and whatever else the reward needs.
"""

from __future__ import annotations

import glob
import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError, pip_install

_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?(?::([\w.-]+))?")
"""owner/name, owner/name:split or owner/name:config:split."""
_FILE_ENDINGS = (".jsonl", ".json", ".csv", ".parquet", ".gz")


def read_rows(files: Sequence[str], prompt_key: str = "prompt") -> list[dict[str, Any]]:
    """All rows of the files, patterns (data/*.jsonl) and data sets on the hub, in order."""
    rows = []
    for name in files:
        for found in _matches(name):
            rows += checked_rows(_read(found), prompt_key, found)
    return rows


def checked_rows(
    rows: Sequence[Any], prompt_key: str, where: str, first: int = 1
) -> list[dict[str, Any]]:
    """The rows as dicts. Refuses one without a prompt; `first` is the number of the first.

    verl's `reward_model.ground_truth` is also there as `ground_truth`.
    """
    if not rows:
        raise TelescopeError(f"{where} holds no rows: it needs at least one prompt")
    found = []
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            raise TelescopeError(f"{where}, row {number} is {row!r}, not a row with a prompt")
        if not isinstance(row.get(prompt_key), (str, list)):
            raise TelescopeError(
                f"{where}, row {number}: no usable `{prompt_key}` (text or a list of messages); "
                f"its columns are {', '.join(row)}; set data.prompt_key to the right one"
            )
        copied = dict(row)
        nested = copied.get("reward_model")
        if isinstance(nested, Mapping) and "ground_truth" in nested:
            copied.setdefault("ground_truth", nested["ground_truth"])
        found.append(copied)
    return found


def _matches(name: str) -> list[str]:
    """The files that a pattern stands for, sorted; any other name stands for itself."""
    if Path(name).exists() or not any(sign in name for sign in "*?["):
        return [name]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise TelescopeError(f"no data file matches {name}: check data.files and data.eval_files")
    return found


def _read(name: str) -> list[dict[str, Any]]:
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix == ".parquet":
            return _read_parquet(path)
        if path.name.endswith((".csv", ".csv.gz")):
            return _read_csv(path)
        return _read_jsonl(path)
    hub_name = _HUB_NAME.fullmatch(name)
    if hub_name is None and path.is_dir():
        raise TelescopeError(f"{path} is a folder: name its files, e.g. {path / '*.jsonl'}")
    if hub_name is None or name.endswith(_FILE_ENDINGS):
        raise TelescopeError(
            f"no data file {path}: check data.files and data.eval_files "
            "(a recipe's paths are looked up beside it, then in the working folder)"
        )
    return _read_hub(*hub_name.groups())


def _read_hub(name: str, config: str | None, split: str | None) -> list[dict[str, Any]]:
    """The rows of a data set: owner/name, its split, or its config and split; `train` if none."""
    try:
        import datasets
    except ImportError:
        raise TelescopeError(
            f"data set {name} is read with `datasets`: {pip_install('datasets')}"
        ) from None
    if split is None:
        config, split = None, config or "train"
    try:
        return list(datasets.load_dataset(name, config, split=split))
    except Exception as error:  # anything from a missing name to a broken connection
        reason = str(error).strip().splitlines()[0]
        raise TelescopeError(f"no data file or data set {name}: {reason}") from error


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (arrow.ArrowInvalid, OSError) as error:
        first = str(error).splitlines()[0]
        raise TelescopeError(f"{path} is not a readable parquet file: {first}") from None
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of a table whose first line names the columns. Numbers become numbers."""
    import pyarrow as arrow
    from pyarrow import csv

    try:
        quoted = csv.ParseOptions(newlines_in_values=True)
        rows: list[dict[str, Any]] = csv.read_csv(path, parse_options=quoted).to_pylist()
    except (arrow.ArrowInvalid, OSError) as error:
        first = str(error).splitlines()[0]
        raise TelescopeError(f"{path} is not a readable csv file: {first}") from None
    return rows


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))  # Windows begins a file with a mark
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TelescopeError(
                f"{path}, line {number} is not JSON: {error} "
                "(what is not .parquet or .csv is read as lines of JSON)"
            ) from None
        if not isinstance(row, dict):
            raise TelescopeError(
                f"{path}, line {number} is not an object: each line is one {{...}} with a prompt"
            )
        rows.append(row)
    return rows


def _lines(path: Path) -> list[bytes]:
    try:
        if path.suffix != ".gz":
            return path.read_bytes().split(b"\n")
        with gzip.open(path) as file:
            return file.read().split(b"\n")
    except (OSError, EOFError, zlib.error) as error:  # a .gz that is none, or that was cut
        raise TelescopeError(f"{path} cannot be read: {error}") from None
