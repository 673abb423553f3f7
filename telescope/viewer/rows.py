"""The list of a step's samples: what sorting, filtering and searching need of each."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from telescope.explain.chat import user_turn
from telescope.viewer.columns import (
    last_update,
    lists_of,
    masks_of,
    numbers_per_row,
    per_sample,
    values_of,
)
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
    unknown = [None] * table.num_rows
    groups = per_sample(table, "group") or unknown
    truncated = per_sample(table, "truncated") or unknown
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
        self.masks = masks_of(table)
        self.values = values_of(table)
        credit = [lists_of(table, name) for name in ("advantages", "whitened")]
        known = [numbers_per_row(lists) for lists in credit if lists is not None]
        self.credit = [known[0], known[-1]] if known else []
        """A and Â, one for the other where a trainer recorded one; empty where it did neither."""
        self.update = last_update(table, "clipped", "dual_clipped")

    def of(self, position: int, *, critic: bool) -> dict[str, Any]:
        mask = self.masks[position]
        written = int(mask.sum())
        a, w = [column[position][mask] for column in self.credit] or np.zeros((2, written))
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
