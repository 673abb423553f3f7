"""Two lists to read: what every tensor is and whether it belongs to a state or to an action, and metaphors for the quantities."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

from telescope.batch import COLUMNS
from telescope.explain.text import wrap
from telescope.explain.words import Lang

ANCHORS = {
    "state": (
        "状态的视角：属于 s_t，写 token t 之前（栅栏的柱子），[B, T]",
        "State view: of s_t, before token t is written (the fence posts), [B, T]",
    ),
    "action": (
        "动作的视角：属于 token t，即 s_t 中的动作 a_t 和转移 s_t → s_{t+1}（柱子之间的格子），[B, T]",
        "Action view: of token t, the action a_t in s_t and the transition s_t → s_{t+1} (the gaps), [B, T]",
    ),
    "sequence": ("整个序列：提示和回答", "Whole sequences: prompt and response"),
    "row": ("每条回答一个，[B]", "One for each response, [B]"),
}

QUANTITIES = (
    ("V", "value"),
    ("δ", "surprise"),
    ("A", "advantage"),
    ("λ", "lam"),
    ("Â", "whitening"),
)
"""Symbol and key of what every metaphor has a picture of."""


def columns(lang: Lang, width: int) -> str:
    """The contract of telescope.batch: tensor, symbol and meaning, under the view that it is anchored to."""
    lines: list[str] = []
    for anchor, heads in ANCHORS.items():
        lines += ["", *wrap(heads[lang == "en"], width)]
        for column in (column for column in COLUMNS.values() if column.anchor == anchor):
            lines += wrap(f"  {column.name}   {column.formula}", width, "      ")
            lines += wrap(f"      {column.zh if lang == 'zh' else column.en}", width, "      ")
    return "\n".join(lines[1:])


@functools.cache
def metaphors() -> dict[str, dict[str, dict[str, str]]]:
    """Metaphor -> quantity -> its text in zh and en."""
    return tomllib.loads(Path(__file__).with_name("metaphors.toml").read_text("utf-8"))


def metaphor_list(lang: Lang, width: int) -> str:
    lines: list[str] = []
    for quantities in metaphors().values():
        lines += ["", quantities["name"][lang]]
        for symbol, quantity in QUANTITIES:
            lines += wrap(f"  {symbol}  {quantities[quantity][lang]}", width, "     ")
    return "\n".join(lines[1:])
