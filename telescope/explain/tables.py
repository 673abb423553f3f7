"""Two lists to read: what every tensor is and belongs to, and metaphors for the quantities."""

from __future__ import annotations

from telescope.batch import COLUMNS, Column
from telescope.explain.text import wrap
from telescope.explain.words import Lang, meaning_of, texts, toml, ui

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


def columns(lang: Lang, width: int) -> str:
    """The columns of telescope.batch: name, formula and meaning, by what they are anchored to."""
    blocks: list[str] = []
    for anchor, head in texts()["anchor"].items():
        lines = wrap(head[lang], width)
        for column in columns_of(anchor):
            lines += wrap(f"  {column.name}   {column.formula}", width, "      ")
            lines += wrap(f"      {meaning_of(column, lang)}", width, "      ")
            lines += wrap(f"      {ui('maker', lang, 'expert', column.maker)}", width, "      ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def metaphors() -> dict[str, dict[str, dict[str, str]]]:
    """Metaphor -> quantity -> its text in zh and en."""
    return toml("metaphors.toml")


def metaphor_list(lang: Lang, width: int) -> str:
    """Every metaphor with its picture of each quantity."""
    blocks: list[str] = []
    for quantities in metaphors().values():
        lines = [quantities["name"][lang]]
        for symbol, quantity in QUANTITIES:
            lines += wrap(f"  {symbol}  {quantities[quantity][lang]}", width, "     ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
