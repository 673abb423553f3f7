"""Data that a script passes to the trainer: rows, data sets, and streams of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from telescope.data.files import checked_rows
from telescope.errors import TelescopeError

GIVEN = "<given in Python>"
"""Stands in the config for data that a script passed: no command can read it again."""

Source = str | Path | Iterable[Any] | Callable[[], Iterable[Any]]
"""A file, a pattern, a name on the hub or several of them; rows; a data set; or a stream.

A stream is a `datasets.IterableDataset`, a generator, or a function that returns one.
"""


def names_of(source: Source | None) -> list[str] | None:
    """The files that a source names; None if it is an object."""
    if isinstance(source, str | Path):
        return [str(source)]
    if not isinstance(source, list | tuple) or not source:
        return None
    if all(isinstance(item, str | Path) for item in source):
        return [str(item) for item in source]
    return None


class Stream:
    """Rows of unknown number, in their own order."""

    def __init__(self, source: Any, prompt_key: str, name: str) -> None:
        self.source = source
        self.prompt_key = prompt_key
        self.name = name
        """Of the argument that a script passed it as."""
        self.repeats = callable(source) or iter(source) is not source
        """Whether it can be read from the start again. A generator cannot."""

    def chunks(self, size: int) -> Iterator[list[dict[str, Any]]]:
        """The rows from the first, `size` at a time."""
        rows = iter(self.source() if callable(self.source) else self.source)
        read = 0
        while chunk := list(islice(rows, size)):
            yield checked_rows(chunk, self.prompt_key, self.name, first=read + 1)
            read += len(chunk)


def open_source(source: Any, prompt_key: str, name: str) -> list[dict[str, Any]] | Stream:
    """The rows of an object that a script passed as `name`, or its stream."""
    if isinstance(source, Mapping):
        raise TelescopeError(f"{name} has several splits: pass one, e.g. {name}=data['train']")
    if not callable(source) and not isinstance(source, Iterable):
        raise TelescopeError(
            f"{name}={source!r} is not data: give rows, a data set, a generator or a file name"
        )
    if callable(source) or not hasattr(source, "__len__"):
        return Stream(source, prompt_key, name)
    return checked_rows(list(source), prompt_key, name)


def finite_rows(source: Any, prompt_key: str, name: str, count: int | None) -> Sequence[Any]:
    """The first `count` rows of an object; of a stream, `count` must be set."""
    found = open_source(source, prompt_key, name)
    if not isinstance(found, Stream):
        return found[:count]
    if count is None:
        raise TelescopeError(f"{name} is a stream: say with eval.prompts how many rows to use")
    return next(found.chunks(count), None) or checked_rows([], prompt_key, name)
