"""Lines of metrics.jsonl: one JSON object each, whose last key is a checksum of the others."""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from telescope.config import checked_toml
from telescope.config.paths import check_ordinary
from telescope.errors import TelescopeError

CHECKSUM = "crc32"


def write_line(row: Mapping[str, Any]) -> str:
    """The line of a row."""
    return json.dumps({**row, CHECKSUM: checksum(row)}) + "\n"


def read_line(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None if it is damaged: cut off, or not what was written.

    Lines of earlier versions have no checksum.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, or not UTF-8
        return None
    step = row.get("step") if isinstance(row, dict) else None
    if not isinstance(step, int | float):
        return None
    name, value = list(row.items())[-1]
    others = {key: row[key] for key in row if key != name}
    if value == checksum(others):  # by its value: a flipped bit may have changed its name
        return others
    return None if CHECKSUM in row else row


def checksum(row: Mapping[str, Any]) -> int:
    """Of a row, or of another JSON object."""
    return zlib.crc32(json.dumps(row).encode())


def damage_of(run: Path) -> list[str]:
    """What of config.toml, metrics.jsonl and warm_start.jsonl cannot be used, in one line each."""
    found = []
    config = run / "config.toml"
    if _is_odd(config):
        found.append(f"{config} is damaged: it is not a file")
    elif config.exists():
        try:
            if not checked_toml(config):
                found.append(f"{config} is empty")
        except TelescopeError as error:
            found.append(str(error))
    growing = is_locked(run / ".lock")
    found += damaged_lines(run / "warm_start.jsonl", growing=growing)
    metrics = run / "metrics.jsonl"
    rows = _rows(metrics, growing)
    found += _named(metrics, rows)
    if rows is not None:
        last = max((row["step"] for row in rows if row), default=0)
        saved = max((_step(path) for path in run.glob("checkpoints/step_*")), default=0)
        if last < saved:
            found.append(f"{metrics} is damaged: it ends at step {last}, before step {saved}")
    return found


def damaged_lines(path: Path, *, growing: bool | None = False) -> list[str]:
    """Says how many lines cannot be used.

    The last line of a `growing` file may not be whole yet.
    """
    return _named(path, _rows(path, growing))


def _rows(path: Path, growing: bool | None) -> list[dict[str, Any] | None] | None:
    """The row of each line, None for a damaged one; None if this is no file."""
    if _is_odd(path):
        return None
    written = path.read_bytes() if path.exists() else b""
    if growing:
        written = written[: written.rfind(b"\n") + 1]
    return [read_line(line) for line in written.splitlines()]


def _named(path: Path, rows: list[dict[str, Any] | None] | None) -> list[str]:
    """What is wrong with these rows, in one line or none."""
    if rows is None:
        return [f"{path} is damaged: it is not a file"]
    count = rows.count(None)
    return [f"{path}: {count} damaged lines are left out"] if count else []


def is_locked(path: Path) -> bool | None:
    """Whether a process trains the run; None if there is no lock file that can be read.

    A shared lock is taken for a moment: it is refused while the trainer holds its own.
    """
    try:
        check_ordinary(path)
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return None


def _is_odd(path: Path) -> bool:
    """Whether there is something of this name that is no file: a folder, a pipe, a lost link."""
    return os.path.lexists(path) and not path.is_file()


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.removeprefix("step_")
    return int(number) if number.isdecimal() else 0
