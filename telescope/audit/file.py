"""RUN/audit/step_000050.json: an audit on disk. It is plain JSON, so opening it runs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from telescope.audit.findings import Audit, summarise
from telescope.config.paths import check_no_link, check_ordinary
from telescope.errors import TelescopeError
from telescope.ledger.lines import CHECKSUM, checksum

VERSION = 1
DIGITS = 7
_FORMAT = TypeAdapter(Audit)
"""Checks the type of everything in a file, which may come from anybody."""


def path_of(run: Path | str, step: int) -> Path:
    """The file of a step's audit."""
    return Path(run) / "audit" / f"step_{step:06d}.json"


def to_json(audit: Audit) -> dict[str, Any]:
    """The audit with its summary."""
    plain = {"version": VERSION, **asdict(audit), "summary": asdict(summarise(audit))}
    rounded: dict[str, Any] = _rounded(plain)
    return rounded


def save(audit: Audit, run: Path) -> Path:
    """Writes the file whole or not at all."""
    path = path_of(run, audit.step)
    temporary = path.with_name(f".{path.name}.tmp")
    check_no_link(path.parent)
    try:
        path.parent.mkdir(exist_ok=True)
        temporary.unlink(missing_ok=True)  # it may be a link to elsewhere
        plain = to_json(audit)
        plain[CHECKSUM] = checksum(plain)
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=1)
        temporary.write_text(text.encode("utf-8", "backslashreplace").decode() + "\n", "utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TelescopeError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def load(run: Path | str, step: int) -> Audit | None:
    """The audit of a step. None without one, or if the file is not what was written."""
    try:
        check_ordinary(path_of(run, step))
        plain = json.loads(path_of(run, step).read_text("utf-8"))
        if plain.pop(CHECKSUM, None) not in (None, checksum(plain)):  # None: of an earlier version
            return None
        return _FORMAT.validate_python(plain) if plain["version"] == VERSION else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _rounded(value: Any) -> Any:
    """Floats with seven digits: more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
