"""metrics.jsonl: one line per step, and the same numbers sent to trackers.

Every metric is defined in docs/metrics.md. A test keeps the two sets equal.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.config.paths import check_ordinary
from telescope.errors import TelescopeError
from telescope.ledger.lines import read_line, write_line
from telescope.run.manifest import write_whole
from telescope.run.trackers import open_trackers, sample_table


class MetricsLog:
    """Appends one JSON object per step to metrics.jsonl, and sends it to the trackers."""

    def __init__(self, config: Config, *, after_step: int) -> None:
        """Rows of steps after `after_step` are discarded: the run will write them again."""
        self.path = config.run_dir / "metrics.jsonl"
        self.damaged: list[int] = []
        """Numbers of the lines, from 1, that were no rows. They are kept with the discarded."""
        with self._explain_os_errors():
            sent = self._discard_after(after_step)
            self._file = self.path.open("a", encoding="utf-8")
        self._config = config.log
        self._trackers = open_trackers(config, after_step=after_step, sent=sent)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the row of a step. NaN and infinities become null."""
        row: dict[str, float | None] = {"step": step}
        for key, value in metrics.items():
            row[key] = value if math.isfinite(value) else None
        with self._explain_os_errors():
            self._file.write(write_line(row))
            self._file.flush()
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def write_samples(self, step: int, batch: TokenBatch) -> None:
        """Sends the trackers a table of the step's first responses, if it is due."""
        count = self._config.samples
        if not count or step % self._config.samples_every:
            return
        for tracker in self._trackers:
            tracker.log_samples(step, *sample_table(batch, count))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # every row was flushed: nothing is lost
            self._file.close()
        for tracker in self._trackers:
            tracker.close()

    @contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TelescopeError(
                f"cannot write {self.path}: {error.strerror}; "
                "free some space or fix the file, then continue with --resume"
            ) from error

    def _discard_after(self, step: int) -> int:
        """Moves the rows after `step` to metrics.discarded.jsonl, and lines that are no rows.

        Returns the last step that the file had, or -1.
        """
        last = -1
        kept: list[bytes] = []
        discarded: list[bytes] = []
        for number, (line, row) in enumerate(_lines(self.path), 1):
            if row is None:
                self.damaged.append(number)
            else:
                last = max(last, int(row["step"]))
            belongs = row is not None and row["step"] <= step
            (kept if belongs else discarded).append(line)
        if discarded:
            path = self.path.with_name("metrics.discarded.jsonl")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            with os.fdopen(os.open(path, flags, 0o644), "ab") as file:
                file.writelines(line + b"\n" for line in discarded)
        write_whole(self.path, b"".join(line + b"\n" for line in kept))
        return last


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a metrics.jsonl. Skips lines that are no rows, e.g. one cut by a crash."""
    return [row for _, row in _lines(path) if row is not None]


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Each line with its row; None if it is no row."""
    if not path.exists():
        return []
    check_ordinary(path)
    return [(line, read_line(line)) for line in path.read_bytes().splitlines()]
