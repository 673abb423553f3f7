"""What a reader of another trainer's files is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

Read = Callable[[list[Path]], dict[str, Any]]
"""The files of one step -> the arguments of `record`."""


@dataclass(frozen=True)
class Kind:
    """The files of one trainer."""

    name: str
    version: str
    """The version whose writer code was read."""
    pattern: str
    """Glob of the files, below the folder that was given."""
    step: str
    """Regular expression of a file's path; its group is the step."""
    read: Read
    settings: dict[str, Any] = field(default_factory=dict)
    """What this trainer does by default, under our names."""
    rules: tuple[str, ...] = ()
    """Where its rules differ from ours, one sentence each."""

    def files(self, path: Path) -> list[Path]:
        """The files of this kind: `path` itself, or those below it."""
        if path.is_file():
            return [path] if re.search(self.step, path.as_posix()) else []
        found = sorted(file for file in path.glob(self.pattern) if file.is_file())
        return [file for file in found if re.search(self.step, file.as_posix())]

    def steps(self, path: Path) -> dict[int, list[Path]]:
        """Step -> its files, in order of the steps."""
        found: dict[int, list[Path]] = {}
        for file in self.files(path):
            match = re.search(self.step, file.as_posix())
            if match:
                found.setdefault(int(match[1]), []).append(file)
        return dict(sorted(found.items()))


def json_lines(path: Path, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, each with these fields. A cut-off last line is skipped."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                if line.endswith("\n"):
                    raise TelescopeError(f"{path}, line {number} is not JSON") from None
                return
            if not isinstance(row, dict):
                raise TelescopeError(f"{path}, line {number} is not an object")
            need(row, fields, path)
            yield row


def need(row: dict[str, Any], fields: Iterable[str], path: Path) -> None:
    """Raises if a row lacks a field that its trainer writes."""
    missing = [field for field in fields if field not in row]
    if missing:
        raise TelescopeError(
            f"{path} has no {missing[0]!r}: "
            "another trainer wrote it, or another version of this one"
        )


def from_first(mask: list[Any]) -> int:
    """Where the response begins: at the first token of the loss."""
    return next((i for i, on in enumerate(mask) if on), len(mask))


def numbers(values: list[Any]) -> list[float] | None:
    """A column of numbers; None if any is missing: a missing number is absent, not zero."""
    if any(value is None for value in values):
        return None
    return [float(value) for value in values]


def complete(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns that every row has."""
    return {
        name: rows for name, rows in columns.items() if rows and all(r is not None for r in rows)
    }
