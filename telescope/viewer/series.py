"""metrics.jsonl as series of numbers, read as far as it has grown."""

from __future__ import annotations

import itertools
import math
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from telescope.config.paths import check_ordinary
from telescope.doctor.sources.names import canonical
from telescope.errors import TelescopeError
from telescope.ledger.lines import read_line

MAX_POINTS = 2_000
"""Points of one series that a page gets."""
_PER_BUCKET = 4
"""First, smallest, largest and last point of a bucket."""
_TAIL = 64
"""Bytes before the place of reading that tell whether the file is still the same."""


@dataclass
class Series:
    """One metric: its steps and its values."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: float, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def to_json(self, after: float | None = None, most: int = MAX_POINTS) -> dict[str, list[float]]:
        """The points later than step `after`, at most so many."""
        chosen: Iterable[int] = range(len(self))
        if after is not None:
            chosen = [i for i in chosen if self.steps[i] > after]
        kept = thin(chosen, self.values, most)
        return {
            "steps": [_plain(self.steps[i]) for i in kept],
            "values": [float(f"{self.values[i]:.7g}") for i in kept],
        }


def _plain(step: float) -> float:
    return int(step) if step.is_integer() else step


def thin(chosen: Iterable[int], values: array[float], most: int) -> list[int]:
    """At most so many of the points, with the extremes of every stretch kept."""
    points = list(chosen)
    if len(points) <= most:
        return points
    buckets = most // _PER_BUCKET
    edges = [round(i * len(points) / buckets) for i in range(buckets + 1)]
    kept: list[int] = []
    for start, stop in itertools.pairwise(edges):
        bucket = points[start:stop]
        lowest = min(bucket, key=values.__getitem__)
        highest = max(bucket, key=values.__getitem__)
        kept += sorted({bucket[0], lowest, highest, bucket[-1]})
    return kept


class Metrics:
    """The series of a metrics.jsonl. `refresh` reads only what was written since the last time.

    The metrics of a watched trainer are there under its names and, for the charts, under ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.series: dict[str, Series] = {}
        self.last_step: float | None = None
        self._read = 0
        self._tail = b""
        self._file = 0
        self._is_foreign = False
        self._lock = Lock()

    def refresh(self) -> Metrics:
        """Reads the lines that were added. A file that was written anew is read from its start."""
        try:
            check_ordinary(self.path)
            with self._lock, self.path.open("rb") as file:
                self._follow(file)
        except FileNotFoundError:
            self._forget()
        except OSError as error:
            raise TelescopeError(
                f"{self.path} cannot be read: {error.strerror}; "
                "a run writes its metrics into that file"
            ) from None
        return self

    def _follow(self, file: Any) -> None:
        inode = os.fstat(file.fileno()).st_ino
        self._is_foreign = (self.path.parent / "watched.toml").exists()
        start = max(self._read - _TAIL, 0)
        file.seek(start)
        same = inode == self._file and file.read(self._read - start) == self._tail
        if not same:
            self._forget()
            file.seek(0)
        self._file = inode
        text = file.read()
        end = text.rfind(b"\n") + 1  # a line that is still being written is read next time
        if not end:
            return
        for line in text[:end].splitlines():
            self._add(line)
        self._read += end
        self._tail = (self._tail + text[:end])[-_TAIL:]

    def _forget(self) -> None:
        self.series = {}
        self.last_step = None
        self._read = 0
        self._tail = b""

    def _add(self, line: bytes) -> None:
        row = read_line(line)
        if row is None or not _is_number(row["step"]):
            return
        step = row["step"]
        self.last_step = step
        found = {k: v for k, v in row.items() if k != "step" and _is_number(v)}
        if self._is_foreign:
            found = canonical(found) | found
        for name, value in found.items():
            self.series.setdefault(name, Series()).add(step, value)

    def to_json(
        self,
        names: list[str] | None = None,
        after: float | None = None,
        most: int = MAX_POINTS,
    ) -> dict[str, Any]:
        """{name: {steps, values}} of the metrics that were asked for and exist."""
        wanted = list(self.series) if names is None else names
        return {
            name: self.series[name].to_json(after, most) for name in wanted if name in self.series
        }


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
