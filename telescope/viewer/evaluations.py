"""The answers of an evaluation, as the page lists them: prompt, answer, right or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as compute

from telescope.errors import TelescopeError
from telescope.explain.chat import user_turn
from telescope.ledger import reader as ledger
from telescope.viewer.payload import number_of, shorten_text

MOST = 200
"""Answers in one list."""
LONGEST = 2_000
"""Characters of one answer: of a longer one its two ends."""
LONGEST_PROMPT = 600
_COLUMNS = ["set", "kind", "prompt", "response", "score", "correct"]


def evaluation_answers(run: Path, step: int, name: str, kind: str, verdict: str) -> dict[str, Any]:
    """Answers of the evaluation after `step`: of one set, drawn in one way.

    A set or kind that the file does not have stands for its first. `verdict` is right, wrong or
    all. `right` and `total` count the answers of this set and kind.
    """
    table = ledger.read(run, step, _COLUMNS, "completions")
    if not table.num_rows or table.num_columns < len(_COLUMNS):
        raise TelescopeError(f"the evaluation after step {step} has no answers that can be read")
    sets = compute.unique(table["set"]).to_pylist()
    name = name if name in sets else sets[0]
    table = table.filter(compute.equal(table["set"], name))
    kinds = sorted(compute.unique(table["kind"]).to_pylist())
    kind = kind if kind in kinds else kinds[0]
    table = table.filter(compute.equal(table["kind"], kind))
    chosen = table
    if verdict in ("right", "wrong"):
        chosen = table.filter(compute.equal(table["correct"], verdict == "right"))
    return {
        "sets": sets,
        "set": name,
        "kinds": kinds,
        "kind": kind,
        "total": table.num_rows,
        "right": compute.sum(table["correct"]).as_py(),
        "count": chosen.num_rows,
        "rows": [_row(row) for row in chosen.slice(0, MOST).to_pylist()],
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "user": shorten_text(user_turn(row["prompt"]).strip(), LONGEST_PROMPT),
        "response": _both_ends(row["response"]),
        "score": number_of(row["score"]),
        "right": row["correct"],
    }


def _both_ends(text: str) -> str:
    """A long answer without its middle: what was judged stands at its end."""
    half = LONGEST // 2 - 2
    return text if len(text) <= LONGEST else f"{text[:half]} … {text[-half:]}"
