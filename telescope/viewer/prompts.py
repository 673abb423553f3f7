"""One prompt through training: every recorded response to it, found without reading whole files.

Responses are of training steps, or greedy answers of an evaluation after a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from telescope.errors import TelescopeError
from telescope.ledger import reader as ledger
from telescope.viewer.columns import has_critic, masks_of, values_of
from telescope.viewer.payload import number_of
from telescope.viewer.rows import asked, prompt_key

_COLUMNS = ("prompt", "score", "values", "response_mask")
_THREADS = 4
"""Files that are read at once."""
MOST_RECURRING = 200
"""Prompts in the list of those that come back."""


File = tuple[int, ledger.Kind]
"""A file of the ledger: its step, and what it holds."""


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
        self._known: dict[File, tuple[int, list[_Row]]] = {}
        self._lock = Lock()

    def files(self) -> list[File]:
        """The ledger's files in the order of steps; an evaluation comes after its step."""
        found: list[File] = [(step, "step") for step in ledger.steps(self.run)]
        found += [(step, "eval") for step in ledger.steps(self.run, "eval")]
        return sorted(found, key=lambda file: (file[0], file[1] == "eval"))

    def rows(self, key: str, correct_score: float) -> list[dict[str, Any]]:
        """The responses to the prompt with this key, in the order of steps."""
        files = self.files()
        found = self._rows_of_all(files)
        return [
            {
                "step": step,
                "kind": kind,
                "position": row.position,
                "score": number_of(row.score),
                "right": row.score is not None and row.score >= correct_score,
                "v0": number_of(row.v0),
                "length": row.length,
            }
            for (step, kind), rows in zip(files, found, strict=True)
            for row in rows
            if row.key == key
        ]

    def recurring(self) -> list[dict[str, Any]]:
        """The prompts that several steps recorded, those of most steps first."""
        files = self.files()
        pairs = zip(files, self._rows_of_all(files), strict=True)
        return recurring_prompts(
            (step, row.key, row.user) for (step, _), rows in pairs for row in rows
        )

    def _rows_of_all(self, files: list[File]) -> list[list[_Row]]:
        with self._lock, ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(self._rows_of, files))

    def _rows_of(self, file: File) -> list[_Row]:
        """The file's rows; none for one that is damaged or gone."""
        try:
            written = ledger.path_of(self.run, *file).stat().st_mtime_ns
            known = self._known.get(file)
            if known is None or known[0] != written:
                known = (written, _read(self.run, file))
                self._known[file] = known
        except (OSError, TelescopeError):
            return []
        return known[1]


def _read(run: Path, file: File) -> list[_Row]:
    step, kind = file
    table = ledger.read(run, step, list(_COLUMNS), kind)
    masks = masks_of(table)
    values = values_of(table) if has_critic(table) else None
    scores = table.column("score").to_pylist()
    rows = []
    for position, prompt in enumerate(table.column("prompt").to_pylist()):
        mask = masks[position]
        v0 = float(values[position][mask][0]) if values is not None and mask.any() else None
        rows.append(
            _Row(prompt_key(prompt), asked(prompt), position, scores[position], v0, len(mask))
        )
    return rows
