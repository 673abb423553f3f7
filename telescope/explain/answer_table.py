"""A small table with one row per token, for answers: in a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from telescope.algorithms.definitions.notation import num
from telescope.explain.drawing import grid, markdown_table
from telescope.explain.facts import Facts
from telescope.explain.sample import Sample
from telescope.explain.tex import safe
from telescope.explain.text import pieces, shorten

HEADS = {
    "Vs": "V",
    "rs": "r",
    "ds": "δ",
    "As": "A",
    "Rs": "R",
    "Ws": "Â",
    "Gs": "G",
    "MCs": "A (λ=1)",
    "A95s": "A (λ=0.95)",
    "A50s": "A (λ=0.5)",
    "A0s": "A (λ=0)",
    "scores": "score",
    "olds": "log π_old",
    "refs": "log π_ref",
    "kls": "kl",
    "pi_olds": "π_old",
    "ratios": "ρ",
    "terms": "ρ·Â",
    "shares": "(γλ)ᵏ %",
}
"""Fact -> head of its column."""
_MOST = 9
"""A longer response shows both ends and the token asked about."""
_EDGE = 2
_WIDEST = 16


@dataclass(frozen=True)
class Table:
    """Cells as text; the first row is the head."""

    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Columns aligned for a terminal: the token to the left, numbers to the right."""
        head, *rest = self.rows
        return "\n".join(f"  {line}" for line in grid(head, rest, left=(1,)))

    def markdown(self) -> str:
        head, *rest = self.rows
        rows = [(index, safe(token), *numbers) for index, token, *numbers in rest]
        return markdown_table(head, rows)


def token_table(sample: Sample, names: Sequence[str], known: Facts) -> Table:
    """The lists of `known` that are named, one row per valid token."""
    valid = sample.written
    texts = pieces(sample.token_bytes)
    head = ("i", "token", *(HEADS[name] for name in names))
    rows = [head]
    for k in _shown(len(valid), valid.index(known["i"])):
        if k is None:
            rows.append(("…",) * len(head))
            continue
        numbers = [_cell(known, name, k) for name in names]
        rows.append((str(valid[k]), shorten(texts[valid[k]], _WIDEST), *numbers))
    return Table(tuple(rows))


def _cell(known: Facts, name: str, k: int) -> str:
    """The number of the k-th valid token; terms of an update skip tokens that were left out."""
    numbers = known[name]
    if len(numbers) == known["tokens"]:
        return num(numbers[k])
    kept = known["kept_at"]
    return num(numbers[kept.index(k)]) if k in kept else "–"


def _shown(count: int, here: int) -> list[int | None]:
    """Which rows are shown: all of a few, else the ends and those around `here`; None is a gap."""
    if count <= _MOST:
        return list(range(count))
    wanted = {*range(_EDGE), *range(count - _EDGE, count), here - 1, here, here + 1}
    out: list[int | None] = []
    for k in sorted(k for k in wanted if 0 <= k < count):
        if out and out[-1] is not None and k > out[-1] + 1:
            out.append(None)
        out.append(k)
    return out
