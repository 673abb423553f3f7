"""verl's console, `step:1 - actor/entropy:0.31 - …`, and its jsonl log, {"step", "data"}."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

_LINE = re.compile(r"\bstep:(\d+) - (.*)")
_PAIR = re.compile(r"([\w@/.\-]+):(?:np\.\w+\()?([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))\)?")
_LOGS = (".jsonl", ".log", ".out", ".txt")


def is_mine(path: Path) -> bool:
    return path.suffix in _LOGS


def find(folder: Path) -> Path | None:
    """The newest log in a folder that has steps in it."""
    found = [path for suffix in _LOGS for path in folder.glob(f"*{suffix}") if path.is_file()]
    for path in sorted(found, key=lambda path: -path.stat().st_mtime):
        if _rows(path):
            return path
    return None


def read(path: Path) -> list[dict[str, Any]]:
    """One row per step."""
    rows = _rows(path)
    if not rows:
        raise TelescopeError(f"{path} has no steps: no line with `step:N - name:number`, no jsonl")
    return rows


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise TelescopeError(f"{path} cannot be read: {error.strerror}") from None
    found = [_from_json(line) if line.startswith("{") else _from_console(line) for line in lines]
    return [row for row in found if row is not None]


def _from_json(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return None
    data = row.get("data")
    return {"step": row["step"], **data} if isinstance(data, dict) else row


def _from_console(line: str) -> dict[str, Any] | None:
    found = _LINE.search(line)
    if found is None:
        return None
    pairs = {name: float(value) for name, value in _PAIR.findall(found[2])}
    return {"step": int(found[1]), **pairs} if pairs else None
