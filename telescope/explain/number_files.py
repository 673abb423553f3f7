"""The content of a file of numbers: TOML, JSON or CSV, each number with its typed precision."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.number_names import column_of
from telescope.explain.typed import typed

_BARE_POINT = re.compile(
    r""" "(?:\\.|[^"\\])*" | '[^']*' | \#.* | (?<![\w.])\.(?=\d) """, re.VERBOSE
)
"""The point of .3. Texts and comments are matched too, so that no point is found inside them."""


def read_content(path: Path) -> Any:
    """Names and numbers as the file has them."""
    text = _text_of(path)
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": lambda text: tomllib.loads(text, parse_float=typed),
        ".json": lambda text: json.loads(text, parse_float=typed),
        ".csv": _csv,
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise TelescopeError(f"{path}: the name must end in .toml, .json or .csv")
    try:
        return _read(readers[suffix], text)
    except TelescopeError as error:
        raise TelescopeError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TelescopeError(f"{path} is not valid {suffix[1:].upper()}: {error}") from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise TelescopeError(
            f"cannot read {path} ({error.strerror}): give a .toml, .json or .csv file"
        ) from None
    except UnicodeDecodeError:
        raise TelescopeError(f"{path} is not UTF-8 text: save it as UTF-8") from None


def _read(reader: Callable[[str], Any], text: str) -> Any:
    """Reads the text; .3 is read as 0.3.

    TOML and JSON want a digit before the point. It is filled in only if the text is not valid
    as it stands.
    """
    try:
        return reader(text)
    except ValueError:
        filled = _BARE_POINT.sub(lambda found: "0." if found[0] == "." else found[0], text)
        if filled == text:
            raise
    try:
        return reader(filled)
    except ValueError as error:
        raise ValueError(f"{error} (with every .3 read as 0.3)") from None


def _csv(text: str) -> dict[str, Any]:
    """The columns of a CSV, one row per token.

    Rows with the same entry in the column `response`, if there is one, are one response.
    """
    lines = list(csv.reader(io.StringIO(text, newline="")))
    header = lines[0] if lines else []
    names = [key.strip() for key in header]
    rows = [row for row in lines[1:] if row]
    if any(len(row) != len(header) for row in rows):
        raise TelescopeError(
            f"the header has {len(header)} names; every row needs as many cells (they may be empty)"
        )
    if "response" not in names:
        return _columns(names, rows, rows)
    at = names.index("response")
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        groups.setdefault(row.pop(at).strip(), []).append(row)
    del names[at]
    return {"responses": [_columns(names, group, rows) for group in groups.values()]}


def _columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], every: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """The columns and settings of one response, numbers as numbers.

    An empty cell among the scores is 0. A setting is the first cell of its column that is not
    empty, in the rows of this response or else in any of `every`.
    """
    out: dict[str, Any] = {}
    for column, key in enumerate(names):
        cells = [row[column] for row in rows]
        name = column_of(key)
        if name == "tokens":
            out[key] = cells
        elif name is not None:
            empty = "0" if name == "token_level_scores" else ""
            out[key] = [_cell(cell.strip() or empty) for cell in cells]
        else:
            cells += [row[column] for row in every]
            given = [cell.strip() for cell in cells if cell.strip()]
            out[key] = _cell(given[0] if given else "")
    return out


def _cell(text: str) -> float | str:
    try:
        float(text)
    except ValueError:
        return text
    return typed(text)
