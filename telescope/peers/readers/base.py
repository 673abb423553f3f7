"""What a reader of another trainer's files is made of."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

Read = Callable[[list[Path]], dict[str, Any]]
"""The files of one step -> the arguments of `record`."""


ALWAYS = ("prompts", "responses", "mask")
"""What there is of every response that has token ids, also in a step without any."""


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
    rules: tuple[str, ...] = ()
    """Where its rules differ from ours, one sentence each."""
    chosen: Callable[[list[Path]], dict[Path, int]] | None = None
    """File -> step, for files whose name does not say what they are."""

    def files(self, path: Path) -> list[Path]:
        """The files of this kind: `path` itself, or those below it."""
        return [file for files in self.steps(path).values() for file in files]

    def steps(self, path: Path) -> dict[int, list[Path]]:
        """Step -> its files, in order of the steps."""
        found = [path] if path.is_file() else sorted(path.glob(self.pattern))
        matches = {file: re.search(self.step, file.as_posix()) for file in found if file.is_file()}
        numbers = {file: int(match[1]) for file, match in matches.items() if match}
        if self.chosen is not None:
            numbers = self.chosen(list(numbers))
        steps: dict[int, list[Path]] = {}
        for file, number in numbers.items():
            steps.setdefault(number, []).append(file)
        for number, files in steps.items():
            if len({file.name for file in files}) < len(files):
                folders = " and ".join(dict.fromkeys(str(file.parent) for file in files))
                raise TelescopeError(f"step {number} is in {folders}: open one of the folders")
        return dict(sorted(steps.items()))


def json_lines(path: Path, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, each with these fields. A cut-off last line is skipped."""
    with path.open(encoding="utf-8", errors="replace") as file:  # a character may be cut off
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
    """A column of numbers; None if all are missing. Writers have null for NaN and infinity."""
    if values and all(value is None for value in values):
        return None
    return [math.nan if value is None else float(value) for value in values]


def drop_zeros(given: dict[str, list[Any]], name: str) -> None:
    """Removes a column that is 0 everywhere: writers put zeros where it was not computed."""
    if not any(any(row) for row in given.get(name, ())):
        given.pop(name, None)


def by_column(rows: list[dict[str, Any]], always: Iterable[str] = ALWAYS) -> dict[str, list[Any]]:
    """One list for each of `always`, and for each other column that no row lacks."""
    given = {name: [row[name] for row in rows] for name in always}
    for name in rows[0] if rows else ():
        column = [row.get(name) for row in rows]
        if name not in given and all(entry is not None for entry in column):
            given[name] = column
    return given
