"""verl's generations: {step}.jsonl (`trainer.rollout_data_dir`, `trainer.validation_data_dir`).

Text and score only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from telescope.peers.readers.base import Kind, json_lines

_OWN = ("input", "output", "gts", "score", "step")
_NEEDED = ("input", "output", "score")


def _read(files: list[Path]) -> dict[str, Any]:
    rows = list(json_lines(files[0], _NEEDED))
    parts = [
        {name: float(x) for name, x in row.items() if name not in _OWN and _is_number(x)}
        for row in rows
    ]
    given: dict[str, Any] = {
        "prompts": [str(row["input"]) for row in rows],
        "texts": [str(row["output"]) for row in rows],
        "scores": [_number(row["score"]) for row in rows],
        "group": [str(row["input"]) for row in rows],
    }
    return given | ({"parts": parts} if any(parts) else {})


def _number(value: Any) -> float | None:
    """A number; numpy's are written as texts by one of verl's two trainers."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


KIND = Kind(
    name="verl",
    version="0.9.1",
    pattern="**/[0-9]*.jsonl",
    step=r"(?:^|/)(\d+)\.jsonl$",
    read=_read,
    rules=(
        "token ids are not written: the text is cut into tokens again, perhaps at other places",
        "these files hold text and score. TELESCOPE_WATCH records every number of every token",
    ),
)
