"""TRL and transformers: trainer_state.json, in the output folder or its newest checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

_NAME = "trainer_state.json"


def is_mine(path: Path) -> bool:
    return path.name == _NAME


def find(folder: Path) -> Path | None:
    """The newest state in a folder."""
    found = [
        path for path in [folder / _NAME, *folder.glob(f"checkpoint-*/{_NAME}")] if path.is_file()
    ]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


def read(path: Path) -> list[dict[str, Any]]:
    """One row per logged step."""
    try:
        state = json.loads(path.read_text("utf-8"))
        rows = [dict(row) for row in state["log_history"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TelescopeError(f"{path} is not a trainer state that can be read: {error}") from None
    return rows
