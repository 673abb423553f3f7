"""Layout in terminal cells: numbers in columns, tables in blocks, things on a line, small tables.

Not rich's tables: these have bars between groups of columns only, break into blocks below each
other where rich would cut cells off, and take milliseconds for thousands of tokens.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import ZERO
from telescope.explain.text import pad, wrap


def cell_number(x: float, signed: bool = False) -> str:
    """Three decimals; what would round to nothing shows its size: 3e-5."""
    if not math.isfinite(x):
        return str(x)
    if abs(x) < ZERO:
        x = 0.0
    if x and abs(x) < 5e-4:
        text = f"{x:.0e}".replace("e-0", "e-")
    else:
        text = f"{x:.3f}" if abs(x) < 1e4 else f"{x:.3g}"
    return f"+{text}" if signed and x > 0 else text.replace("-0.000", "0.000")


def window(length: int, middle: int, fit: int) -> tuple[int, int]:
    """first, last (exclusive) of at most `fit` of `length`, around `middle`."""
    first = max(min(middle - fit // 2, length - fit), 0)
    return first, min(first + fit, length)


def place(items: Sequence[tuple[int, str]]) -> str:
    """A line with each text centred at its cell; a text at cell 0 starts there."""
    line = ""
    for x, text in sorted(items):
        start = x if x == 0 else x - cell_len(text) // 2
        if line:
            needs_space = text != "|" and not line.endswith("|")
            start = max(start, cell_len(line) + needs_space)
        line = pad(line, start) + text
    return line


# ---- the fence picture ----


Row = tuple[str, Sequence[str]]
"""A name, and the texts that stand behind it."""


def fence(
    states: Row, values: Row, tokens: Sequence[str], rows: Sequence[Row], chosen: int, width: int
) -> tuple[list[str], int, int]:
    """The lines, and first and last (exclusive) of the tokens that fit around `chosen`.

    States and values are one more than there are tokens; the other rows have a text for each.
    """
    left = 4 + max(cell_len(name) for name, _ in (states, values, *rows))
    room = width - left - 4
    count = len(tokens)

    first, last = window(count, chosen, max(room // 8, 1))
    shown = [text for _, texts in (("", tokens), values, *rows) for text in texts[first:last]]
    gap = 2 + max(5, *map(cell_len, shown))  # cells between two posts
    first, last = window(count, chosen, max(room // gap, 1))

    at = [left + gap * k for k in range(last - first + 1)]
    middles = [x + (gap + 1) // 2 for x in at[:-1]]

    def line(row: Row, at: Sequence[int], end: int) -> str:
        name, texts = row
        return place([(0, name), *zip(at, texts[first:end], strict=True)])

    bars = [(x, "|") for x in at]
    lines = [
        line(states, at, last + 1),
        place([*bars, *zip(middles, tokens[first:last], strict=True)]),
        line(values, at, last + 1),
        *(line(row, middles, last) for row in rows),
    ]
    return lines, first, last


# ---- the token table ----


@dataclass(frozen=True)
class TableColumn:
    """One column of the token table."""

    key: str
    head: str
    group: int
    """Columns of one group stand together; a bar stands between groups."""
    cells: list[str]

    @functools.cached_property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.head, *self.cells))


def in_blocks(columns: Sequence[TableColumn], room: int) -> list[list[TableColumn]]:
    """Groups of columns side by side as far as they fit into `room`; the rest in further blocks."""
    blocks: list[list[TableColumn]] = []
    left = 0
    for group in sorted({column.group for column in columns}):
        members = [column for column in columns if column.group == group]
        fits = _needed(members) <= room
        for together in [members] if fits else [[column] for column in members]:
            if not blocks or _needed(together) > left:
                blocks.append([])
                left = room
            blocks[-1] += together
            left -= _needed(together)
    return blocks


def _needed(columns: Sequence[TableColumn]) -> int:
    return sum(column.width + 2 for column in columns) + 1


def joined(block: Sequence[TableColumn], cells: Sequence[str]) -> str:
    """Cells with a bar between groups."""
    out = ""
    group = None
    for column, cell in zip(block, cells, strict=True):
        bar = " " if column.group == group else "│ "
        out += f"{bar}{cell} "
        group = column.group
    return out


# ---- small tables ----

_BETWEEN = 2
"""Cells between two columns of a small table."""
_NARROWEST = 6


def grid(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: float = math.inf,
    *,
    left: Sequence[int] = (),
) -> list[str]:
    """A small table: heads, a line, rows. Columns stand right-aligned, those of `left` do not.

    Where it would be wider than `width`, its widest columns are wrapped.
    """
    widths = [max(cell_len(row[k]) for row in (heads, *rows)) for k in range(len(heads))]
    while sum(widths) + _BETWEEN * (len(widths) - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    lines = _grid_row(heads, widths, left)
    lines.append("  ".join("─" * cells for cells in widths))
    for row in rows:
        lines += _grid_row(row, widths, left)
    return [line.rstrip() for line in lines]


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _grid_row(cells: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> list[str]:
    """One row, as high as its highest cell."""
    wrapped = [wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
    aligns = ["<" if k in left else ">" for k in range(len(cells))]
    return [
        "  ".join(map(pad, texts, widths, aligns))
        for texts in itertools.zip_longest(*wrapped, fillvalue="")
    ]
