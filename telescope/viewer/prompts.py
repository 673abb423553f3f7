"""One prompt through training: every recorded response to it, found without reading whole files."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from telescope.errors import TelescopeError
from telescope.ledger import reader as ledger
from telescope.viewer.columns import has_critic, numbers_per_row
from telescope.viewer.payload import number_of
from telescope.viewer.rows import asked, prompt_key

_COLUMNS = ("prompt", "score", "values", "response_mask")
_THREADS = 4
"""Files that are read at once."""
MOST_RECURRING = 200
"""Prompts in the list of those that come back."""


@dataclass(frozen=True)
class _Row:
    """What one file says about one response."""

    key: str
    user: str
    position: int
    score: float | None
    v0: float | None
    length: int


def recurring_prompts(found: Iterable[tuple[int, str, str]]) -> list[dict[str, Any]]:
    """Of (step, key, user) the prompts of several steps, those of most steps first."""
    steps: dict[str, set[int]] = {}
    users: dict[str, str] = {}
    for step, key, user in found:
        steps.setdefault(key, set()).add(step)
        users[key] = user
    several = sorted((key for key in steps if len(steps[key]) > 1), key=lambda k: -len(steps[k]))
    return [
        {"key": key, "user": users[key], "steps": len(steps[key])}
        for key in several[:MOST_RECURRING]
    ]


class PromptIndex:
    """The prompts of every recorded step. Each file is read once, four columns of it."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._known: dict[int, tuple[int, list[_Row]]] = {}
        self._lock = Lock()

    def rows(self, key: str, steps: list[int], correct_score: float) -> list[dict[str, Any]]:
        """The responses to the prompt with this key, in the order of steps."""
        found = self._rows_of_all(steps)
        return [
            {
                "step": step,
                "position": row.position,
                "score": number_of(row.score),
                "right": row.score is not None and row.score >= correct_score,
                "v0": number_of(row.v0),
                "length": row.length,
            }
            for step, rows in zip(steps, found, strict=True)
            for row in rows
            if row.key == key
        ]

    def recurring(self, steps: list[int]) -> list[dict[str, Any]]:
        """The prompts that several of these steps recorded, those of most steps first."""
        pairs = zip(steps, self._rows_of_all(steps), strict=True)
        return recurring_prompts((step, row.key, row.user) for step, rows in pairs for row in rows)

    def _rows_of_all(self, steps: list[int]) -> list[list[_Row]]:
        with self._lock, ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(self._rows_of, steps))

    def _rows_of(self, step: int) -> list[_Row]:
        """The step's rows; none for a file that is damaged or gone."""
        try:
            written = ledger.path_of(self.run, step).stat().st_mtime_ns
            known = self._known.get(step)
            if known is None or known[0] != written:
                known = (written, _read(self.run, step))
                self._known[step] = known
        except (OSError, TelescopeError):
            return []
        return known[1]


def _read(run: Path, step: int) -> list[_Row]:
    table = ledger.read(run, step, list(_COLUMNS))
    critic = has_critic(table) and "values" in table.column_names
    masks = numbers_per_row(table.column("response_mask").combine_chunks())
    values = numbers_per_row(table.column("values").combine_chunks()) if critic else []
    scores = table.column("score").to_pylist()
    rows = []
    for position, prompt in enumerate(table.column("prompt").to_pylist()):
        mask = masks[position] > 0
        v0 = float(values[position][mask][0]) if critic and mask.any() else None
        rows.append(
            _Row(prompt_key(prompt), asked(prompt), position, scores[position], v0, len(mask))
        )
    return rows
