"""The token table: a row for every token, or those around one and a summary of the rest."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import num
from telescope.explain.drawing import TableColumn, in_blocks, joined, window
from telescope.explain.instructive import size_symbol, sizes_of
from telescope.explain.sample import ActorUpdate
from telescope.explain.text import pad
from telescope.explain.view import View

_TRACES_OF: dict[str, tuple[str, ...]] = {
    "kl": ("kl",),
    "reward": ("reward",),
    "delta": ("delta",),
    "A": ("advantage",),
    "R": ("return",),
    "white": ("whitened",),
    "ratio": ("ratio", "weight"),
    "clip": ("clip", "surrogate", "objective"),
}
"""Column of the table -> traces that check its number."""
_LAYOUT = (
    ("old", 0, "old_log_probs"),
    ("ref", 0, "ref_log_prob"),
    ("kl", 0, "kl"),
    ("score", 1, "token_level_scores"),
    ("reward", 1, "token_level_rewards"),
    ("V", 2, "values"),
    ("delta", 2, "deltas"),
    ("A", 2, "advantages"),
    ("R", 2, "returns"),
    ("white", 3, "whitened"),
)
"""Key, group and column of the batch, from left to right."""
_OF_CRITIC = ("V", "delta", "R")
"""Columns that mean nothing without a critic: V would be 0, δ the reward and R the advantage."""
_SIGNED = ("kl", "reward", "delta", "A", "white")
_ADDED = {"kl": "kl", "reward": "token_level_rewards", "delta": "deltas", "A": "advantages"}
"""Columns of the summary that have a sum."""
_BRIEF = ("A", "V", "delta", "reward", "white", "R")
"""What the summary shows, the most important first."""
_UPDATE_GROUP = 4
LONGEST_TABLE = 12
"""A longer response shows a window around the chosen token, and a summary."""
WINDOW = 7
LARGEST = 5
"""Tokens with the largest |A| in the summary."""


class TokenTable(View):
    """The table of a sample's tokens."""

    def table(self) -> list[str]:
        """The rows that are shown, in blocks below each other where the columns do not fit."""
        rows = self._rows()
        drawn = self.draws(self._lines(self.columns, rows))
        if len(rows) < len(self.sample):
            drawn += self.says(self.ui("rows", rows[0], rows[-1], len(self.sample)), "dim")
            drawn += self.summary()
        for note in self._legend():
            drawn += self.says(note, indent="  ")
        return drawn

    def _rows(self) -> list[int]:
        """All tokens, or those around the chosen one."""
        count = len(self.sample)
        if self.every or count <= LONGEST_TABLE:
            return list(range(count))
        return list(range(*window(count, self.token, WINDOW)))

    def summary(self) -> list[str]:
        """Both ends, the tokens with the largest |A|, and sums over all valid tokens."""
        lines = [""]
        symbol = size_symbol(self.full) or "A"
        lines += self.says(self.ui("summary", symbol, LARGEST, len(self.sample.written)), "bold")
        columns = self.brief_columns(with_ratio=False)
        return lines + self.draws(self._lines(columns, self.outstanding(), with_sums=True))

    def outstanding(self) -> list[int]:
        """First and last token, and those with the largest |A|."""
        sizes = sizes_of(self.full)
        at = self.sample.written if size_symbol(self.full) else []
        largest = sorted(at, key=lambda t: -abs(sizes[t]))[:LARGEST]
        return sorted({0, len(self.sample) - 1, *largest})

    def brief_columns(self, *, with_ratio: bool) -> list[TableColumn]:
        """As many of the important columns as fit beside each other."""
        by_key = {column.key: column for column in self.columns}
        ratio = by_key.get("ratio")
        chosen = [by_key[key] for key in _BRIEF if key in by_key]
        if not chosen and ratio is None:
            chosen = list(self.columns)  # log-probs alone
        if with_ratio and ratio is not None:
            marks = by_key["clip"].cells
            cells = [x + mark for x, mark in zip(ratio.cells, marks, strict=True)]
            chosen.insert(4, TableColumn("ratio", ratio.head, ratio.group, cells))
        while len(chosen) > 1 and len(in_blocks(chosen, self.width - self._front())) > 1:
            chosen.pop()
        order = [key for key, _, _ in _LAYOUT] + ["ratio"]
        return sorted(chosen, key=lambda column: order.index(column.key))

    # ---- lines ----

    def _front(self) -> int:
        """Cells before the first column of numbers."""
        digits = len(str(len(self.sample) - 1))
        return digits + 3 + self._side + 1

    @functools.cached_property
    def _side(self) -> int:
        """Cells of the widest token."""
        return max(cell_len(text) for text in (self.ui("token"), *self.tokens))

    def _lines(
        self, columns: Sequence[TableColumn], rows: Sequence[int], *, with_sums: bool = False
    ) -> list[str]:
        digits = len(str(len(self.sample) - 1))
        front = self._front()
        index_head = self.ui("index").rjust(digits + 1)
        corner = pad(f"{index_head}  {self.ui('token')}", front)
        lines: list[str] = []
        for block in in_blocks(columns, self.width - front):
            if lines:
                lines.append("")
            heads = [pad(column.head, column.width, ">") for column in block]
            head = corner + joined(block, heads)
            lines.append(self.paint(head.rstrip(), "bold"))
            for t in rows:
                cells = [self._painted(column, t) for column in block]
                row_front = self._row_front(t, digits) + pad(self.tokens[t], self._side + 1)
                lines.append(row_front + joined(block, cells))
            if with_sums:
                lines.append(pad(" Σ", front) + joined(block, self._sums(block)))
        return lines

    def _sums(self, block: Sequence[TableColumn]) -> list[str]:
        """The sum of each column over the valid tokens, where a sum means something."""
        sums = []
        for column in block:
            text = ""
            if column.key in _ADDED:
                numbers = self.full.columns[_ADDED[column.key]]
                text = self.cell(math.fsum(numbers[t] for t in self.sample.written), signed=True)
            sums.append(pad(text, column.width, ">"))
        return sums

    def _row_front(self, t: int, digits: int) -> str:
        """Whether the token is chosen, its index, and whether its numbers are right."""
        is_chosen = t == self.token
        arrow = "▶" if is_chosen else " "
        style = "bold" if is_chosen else None
        check = " "
        if self.verdicts[t]:
            check = "✓"
        if not all(self.verdicts[t].values()):
            check = "✗"
            style = "bad"
        return self.paint(f"{arrow}{t:>{digits}}{check} ", style)

    def _painted(self, column: TableColumn, t: int) -> str:
        cell = pad(column.cells[t], column.width, ">")
        style = None
        if "✗" in cell:
            style = "bad"
        elif column.key in ("A", "white") and self.mask[t]:
            is_negative = cell.lstrip().startswith("-")
            style = "down" if is_negative else "up"
        return self.paint(cell, style)

    # ---- columns ----

    @functools.cached_property
    def columns(self) -> list[TableColumn]:
        made = []
        for key, group, name in _LAYOUT:
            if name not in self.full.columns:
                continue
            if key == "score" and not self._has_dense_scores():
                continue
            if key in _OF_CRITIC and not self.has_critic:
                continue
            cells = self._numbers(key, self.full.columns[name])
            made.append(TableColumn(key, self.head(key), group, cells))
        update = self._update()
        if update is not None:
            ratios = self._numbers("ratio", update.ratio)
            marks = self._clip_marks(update)
            made.append(TableColumn("ratio", self.head("ratio"), _UPDATE_GROUP, ratios))
            made.append(TableColumn("clip", self.head("clip"), _UPDATE_GROUP, marks))
        return made

    def _has_dense_scores(self) -> bool:
        """Whether another token than the last one has a score."""
        last = max(self.sample.written, default=0)
        scores = self.full.columns["token_level_scores"]
        return any(score for t, score in enumerate(scores) if t != last)

    def _numbers(self, key: str, column: Sequence[float]) -> list[str]:
        return [self._number(key, t, x) for t, x in enumerate(column)]

    def _number(self, key: str, t: int, x: float) -> str:
        if not self.mask[t]:
            return "·"
        cell = self.cell(x, key in _SIGNED)
        raw = self.full.columns.get("advantages")
        if key == "white" and raw is not None and raw[t] * x < 0:
            cell += "⇅"
        if self._is_wrong(key, t):
            cell += "✗"
        return cell

    def _clip_marks(self, update: ActorUpdate) -> list[str]:
        marks = [""] * len(self.sample)
        for mark, flags in (("✂", update.clipped), ("✂✂", update.dual_clipped)):
            for t, clipped in enumerate(flags):
                if clipped:
                    marks[t] = mark
        return [mark + "✗" * self._is_wrong("clip", t) for t, mark in enumerate(marks)]

    def _is_wrong(self, key: str, t: int) -> bool:
        verdicts = self.verdicts[t]
        names = _TRACES_OF.get(key, ())
        return not all(verdicts.get(name, True) for name in names)

    # ---- notes ----

    def _legend(self) -> list[str]:
        """What the marks mean that are there, and how many numbers were checked."""
        notes = self._notes_off_the_mask()
        cells = [cell for column in self.columns for cell in column.cells]
        if any("⇅" in cell for cell in cells):
            notes.append(self.ui("flip"))
        if any("✂✂" in cell for cell in cells):
            notes.append(self.ui("dual_mark"))
        if any(cell in ("✂", "✂✗") for cell in cells):
            notes.append(self.ui("clip_mark"))
        update = self._update()
        if update is not None:
            key = "given" if update.epoch < 0 else "update"
            count = len(self.full.actor_updates)
            notes.append(self.ui(key, update.epoch, update.minibatch, count))
        if self.tracer.alone:
            notes.append(self.ui("alone"))
        notes.append(self._count_of_checks())
        return notes

    def _count_of_checks(self) -> str:
        oks = [ok for row in self.verdicts for ok in row.values()]
        if not oks:
            return self.ui("unrecorded")
        right = sum(oks)
        wrong = len(oks) - right
        rounded = {
            (t, trace.name.removesuffix("_sum"))
            for t, traces in enumerate(self.traces)
            for trace in traces
            if trace.rounded
        }
        note = self.ui("of_them_rounded", len(rounded)) if rounded else ""
        return self.ui("checked", len(oks), f"{right} ✓{note}", f"{wrong} ✗")

    def _notes_off_the_mask(self) -> list[str]:
        """Notes about tools' tokens and padding."""
        notes = []
        if any(map(self._is_tool, range(len(self.sample)))):
            notes.append(f"⚙ {self.ui('tool')}")
        padding = self.sample.padding
        if padding:
            first = min(padding)
            last = max(padding)
            which = str(first) if first == last else f"{first}–{last}"
            notes.append(self.ui("padding", which))
        for t, held in padding.items():
            said = [self._fact(name, num(x)) for name, x in held.items()]
            if said:
                numbers = self.numbers(", ".join(said))
                notes.append(self.ui("held", t, numbers))
        return notes
