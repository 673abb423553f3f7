"""The list of a step's samples: what sorting, filtering and searching need of each."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from telescope.explain.chat import user_turn
from telescope.viewer.columns import Numbers, last_update, numbers_per_row
from telescope.viewer.payload import number_of, parts_of

FIRST_WORDS = 160
"""Characters of the user's turn and of the answer in a row of the list."""


def prompt_key(prompt: str) -> str:
    """A short name for a prompt, to group its samples by."""
    return hashlib.blake2s(prompt.encode("utf-8", "replace"), digest_size=6).hexdigest()


def asked(prompt: str) -> str:
    """The beginning of the user's last turn."""
    return user_turn(prompt).strip()[:FIRST_WORDS]


def index_rows(table: pa.Table, correct_score: float, *, critic: bool) -> list[dict[str, Any]]:
    """One row per sample of a step, made from a few columns. `critic`: V means something."""
    columns = {name: table.column(name).to_pylist() for name in ("prompt", "response", "score")}
    groups = _optional(table, "group")
    truncated = _optional(table, "truncated")
    numbers = _Numbers(table)
    rows = []
    for position in range(table.num_rows):
        prompt = columns["prompt"][position]
        score = columns["score"][position]
        rows.append(
            {
                "position": position,
                "prompt_key": prompt_key(prompt),
                "group": groups[position],
                "user": asked(prompt),
                "answer": columns["response"][position][:FIRST_WORDS],
                "score": number_of(score),
                "parts": parts_of(dict(table.column("parts")[position].as_py() or ())),
                "right": score is not None and score >= correct_score,
                "truncated": bool(truncated[position]),
                **numbers.of(position, critic=critic),
            }
        )
    return rows


class _Numbers:
    """The per-token columns that a row is made from."""

    def __init__(self, table: pa.Table) -> None:
        self.masks = numbers_per_row(table.column("response_mask").combine_chunks())
        self.advantages = _optional_numbers(table, "advantages")
        self.whitened = _optional_numbers(table, "whitened")
        self.values = _optional_numbers(table, "values")
        self.update = last_update(table, "clipped", "dual_clipped")

    def of(self, position: int, *, critic: bool) -> dict[str, Any]:
        mask = self.masks[position] > 0
        written = int(mask.sum())
        a = self._credit(self.advantages or self.whitened, position, mask)
        w = self._credit(self.whitened or self.advantages, position, mask)
        v0 = None
        if critic and self.values is not None and written:
            v0 = number_of(float(self.values[position][mask][0]))
        return {
            "length": len(mask),
            "written": written,
            "tools": tool_turns(mask),
            "clip_fraction": self._clip_fraction(position, mask, written),
            "flipped": int((a * w < 0).sum()),
            "max_abs_a": number_of(float(np.abs(a).max(initial=0.0))),
            "v0": v0,
        }

    def _credit(self, column: list[Numbers] | None, position: int, mask: Any) -> Numbers:
        """The credit of the written tokens; zeros where a trainer recorded none."""
        return np.zeros(int(mask.sum()), np.float32) if column is None else column[position][mask]

    def _clip_fraction(self, position: int, mask: Any, written: int) -> float | None:
        """Share of the tokens that the last update clipped; None without an update."""
        if self.update is None:
            return None
        hit = self.update["clipped"][position] + self.update["dual_clipped"][position] > 0
        if not len(hit) or not written:
            return None
        return number_of(float((hit & mask).sum()) / written, 4)


def tool_turns(mask: Any) -> int:
    """How often a tool spoke: stretches of tokens that the policy did not write."""
    tokens = np.concatenate([[True], mask])
    return int((tokens[:-1] & ~tokens[1:]).sum())


def _optional(table: pa.Table, name: str) -> list[Any]:
    if name not in table.column_names:
        return [None] * table.num_rows
    found: list[Any] = table.column(name).to_pylist()
    return found


def _optional_numbers(table: pa.Table, name: str) -> list[Numbers] | None:
    if name not in table.column_names:
        return None
    return numbers_per_row(table.column(name).combine_chunks())
