"""Two lists to read: what every tensor is and belongs to, and metaphors for the quantities."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

from telescope.batch import COLUMNS, Column
from telescope.explain.text import wrap
from telescope.explain.words import Lang

ANCHORS: dict[str, dict[Lang, str]] = {
    "state": {
        "zh": "状态的视角：属于 s_i，写 token i 之前（栅栏的柱子），[B, T]",
        "en": "State view: of s_i, before token i is written (the fence posts), [B, T]",
    },
    "action": {
        "zh": (
            "动作的视角：属于 token i，即 s_i 中的动作 a_i 和转移 s_i → s_{i+1}"
            "（柱子之间的格子），[B, T]"
        ),
        "en": (
            "Action view: of token i, the action a_i in s_i and the transition s_i → s_{i+1} "
            "(the gaps), [B, T]"
        ),
    },
    "sequence": {"zh": "整个序列：提示和回答", "en": "Whole sequences: prompt and response"},
    "row": {"zh": "每条回答一个，[B]", "en": "One for each response, [B]"},
}
"""Heads of the list of columns, by what a column is anchored to."""

MADE_BY: dict[Lang, str] = {"zh": "由谁算出：", "en": "made by"}

QUANTITIES = (
    ("V", "value"),
    ("δ", "surprise"),
    ("A", "advantage"),
    ("λ", "lam"),
    ("Â", "whitening"),
)
"""Symbol and key of what every metaphor has a picture of."""


def columns_of(anchor: str) -> list[Column]:
    """The batch's columns that are anchored there, in the order of their table."""
    return [column for column in COLUMNS.values() if column.anchor == anchor]


def meaning_of(column: Column, lang: Lang) -> str:
    return column.zh if lang == "zh" else column.en


def columns(lang: Lang, width: int) -> str:
    """The columns of telescope.batch: name, formula and meaning, by what they are anchored to."""
    blocks: list[str] = []
    for anchor, head in ANCHORS.items():
        lines = wrap(head[lang], width)
        for column in columns_of(anchor):
            lines += wrap(f"  {column.name}   {column.formula}", width, "      ")
            lines += wrap(f"      {meaning_of(column, lang)}", width, "      ")
            lines += wrap(f"      {MADE_BY[lang]} {column.maker}", width, "      ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


@functools.cache
def metaphors() -> dict[str, dict[str, dict[str, str]]]:
    """Metaphor -> quantity -> its text in zh and en."""
    return tomllib.loads(Path(__file__).with_name("metaphors.toml").read_text("utf-8"))


def metaphor_list(lang: Lang, width: int) -> str:
    """Every metaphor with its picture of each quantity."""
    blocks: list[str] = []
    for quantities in metaphors().values():
        lines = [quantities["name"][lang]]
        for symbol, quantity in QUANTITIES:
            lines += wrap(f"  {symbol}  {quantities[quantity][lang]}", width, "     ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
