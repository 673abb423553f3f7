"""TensorBoard event files: scalars by tag (extra `tensorboard`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError, pip_install


def is_mine(path: Path) -> bool:
    return ".tfevents." in path.name


def find(folder: Path) -> Path | None:
    """The folder of the newest event file, here or below."""
    found = [path for path in folder.rglob("*.tfevents.*") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime).parent if found else None


def read(path: Path) -> list[dict[str, Any]]:
    """One row per step."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise TelescopeError(
            f"{path} holds TensorBoard events, and tensorboard is not installed: "
            f"{pip_install('tensorboard')}"
        ) from None
    events: Any = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    rows: dict[int, dict[str, Any]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            rows.setdefault(event.step, {"step": event.step})[tag] = event.value
    return [rows[step] for step in sorted(rows)]
