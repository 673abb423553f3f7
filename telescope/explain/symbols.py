"""The one table of symbols (notation.toml) that every text and formula follows."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telescope.explain.drawing import grid, markdown_table
from telescope.explain.words import Lang

BELONGS: dict[str, dict[Lang, str]] = {
    "state": {"zh": "状态 s_i", "en": "state s_i"},
    "action": {"zh": "动作 a_i", "en": "action a_i"},
    "response": {"zh": "整条回答", "en": "response"},
    "batch": {"zh": "整批", "en": "batch"},
    "setting": {"zh": "设置", "en": "setting"},
    "index": {"zh": "下标", "en": "index"},
    "general": {"zh": "计数", "en": "count"},
}
"""What a symbol belongs to."""
HEADS: dict[Lang, tuple[str, str, str, str]] = {
    "zh": ("记号", "名称与含义", "属于", "verl 的名字 · 本库的函数"),
    "en": ("symbol", "name and meaning", "of", "verl's name · our function"),
}


@dataclass(frozen=True)
class Symbol:
    """A row of the table."""

    symbol: str
    of: str
    name: dict[Lang, str]
    meaning: dict[Lang, str]
    also: list[str] = field(default_factory=list)
    """Other ways in which it is written."""
    verl: str = ""
    ours: str = ""
    """The function of ours that makes it, as a path that can be imported."""


@functools.cache
def symbols() -> tuple[Symbol, ...]:
    """All symbols, in the order of the table."""
    rows: list[dict[str, Any]] = tomllib.loads(
        Path(__file__).with_name("notation.toml").read_text("utf-8")
    )["symbol"]
    return tuple(Symbol(**row) for row in rows)


def notation(lang: Lang, width: int) -> str:
    """The table for a terminal."""
    rows = []
    for row in symbols():
        sep = "：" if lang == "zh" else ": "
        said = f"{row.name[lang]}{sep}{row.meaning[lang]}"
        made = " · ".join(x for x in (row.verl, row.ours.removeprefix("telescope.")) if x)
        rows.append([row.symbol, said, BELONGS[row.of][lang], made])
    return "\n".join(grid(HEADS[lang], rows, width, left=(0, 1, 2, 3)))


def notation_markdown(lang: Lang) -> str:
    """The same as a Markdown table."""
    rows = []
    for row in symbols():
        made = " · ".join(f"`{x}`" for x in (row.verl, row.ours) if x)
        said = f"{row.name[lang]}: {row.meaning[lang]}"
        rows.append([row.symbol, said, BELONGS[row.of][lang], made])
    return markdown_table(HEADS[lang], rows)
