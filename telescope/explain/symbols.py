"""The one table of symbols (notation.toml) that every text and formula follows."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from telescope.explain.drawing import grid, markdown_table
from telescope.explain.words import Lang, toml


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
    return tuple(Symbol(**row) for row in toml("notation.toml")["symbol"])


def notation(lang: Lang, width: int) -> str:
    """The table for a terminal."""
    table = toml("notation.toml")
    rows = []
    for row in symbols():
        sep = "：" if lang == "zh" else ": "
        said = f"{row.name[lang]}{sep}{row.meaning[lang]}"
        made = " · ".join(x for x in (row.verl, row.ours.removeprefix("telescope.")) if x)
        rows.append([row.symbol, said, table["belongs"][row.of][lang], made])
    return "\n".join(grid(table["heads"][lang], rows, width, left=(0, 1, 2, 3)))


def notation_markdown(lang: Lang) -> str:
    """The same as a Markdown table."""
    table = toml("notation.toml")
    rows = []
    for row in symbols():
        made = " · ".join(f"`{x}`" for x in (row.verl, row.ours) if x)
        said = f"{row.name[lang]}: {row.meaning[lang]}"
        rows.append([row.symbol, said, table["belongs"][row.of][lang], made])
    return markdown_table(table["heads"][lang], rows)
