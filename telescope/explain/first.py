"""The first screen: 24 lines with the numbers that matter most, and what to ask next."""

from __future__ import annotations

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import num
from telescope.explain.instructive import size_symbol, sizes_of
from telescope.explain.terminal import Screen
from telescope.explain.text import both_ends, shorten
from telescope.explain.trace import Trace

LINES = 24
_TERMS = ("delta", "outcome", "baseline", "scale", "advantage", "return", "whitened")
"""Terms of the chosen token, in this order."""
_FIRST = ("delta", "advantage", "baseline", "scale", "return", "whitened", "outcome")
"""The same by importance: as many as there is room for."""
_LONGEST_TABLE = 8
"""Tokens of a response that are all shown."""
_LONGEST_PART = 200
"""Characters of a prompt or response that are looked at from either end."""


class FirstScreen(Screen):
    """A screen that fits a small terminal."""

    def parts(self) -> list[list[str]]:
        head = self.header()
        table = self.brief_table()
        more = self.more()
        used = self.above + len(head) + len(table) + len(more) + 4  # 3 empty lines and 1 title
        return [head, table, self.brief_terms(LINES - used), more]

    def header(self) -> list[str]:
        """Prompt and response on one line, then the settings."""
        quotes = self.quoted(_LONGEST_PART).values()
        shown = [both_ends(quote, self.width // 2 - 3) for quote in quotes]
        lines = [self.paint(" → ".join(shown), "bold")] if shown else []
        facts = self.says("   ".join(self._facts()))
        return lines + facts[:2] + self.warnings(brief=True)

    def brief_table(self) -> list[str]:
        """Every token, or both ends, those with the largest |A|, and sums."""
        count = len(self.sample)
        is_long = count > _LONGEST_TABLE
        rows = self.outstanding() if is_long else list(range(count))
        columns = self.brief_columns(with_ratio=True)
        lines = self.draws(self._lines(columns, rows, with_sums=is_long))
        if not columns:
            return self.says(self._count_of_checks(), "dim")[:1]
        note = self._note_on_rows(len(rows)) if is_long else self._count_of_checks()
        shown = [column.cells[t] for column in columns for t in rows]
        for mark, key in (("✂", "brief_clip"), ("⇅", "brief_flip")):
            longer = f"{note} · {self.ui(key)}"
            if any(mark in cell for cell in shown) and cell_len(longer) <= self.width:
                note = longer
        return lines + self.says(note, "dim")[:1]

    def _note_on_rows(self, shown: int) -> str:
        symbol = size_symbol(self.full)
        sizes = sizes_of(self.full)
        are_alike = len({sizes[t] for t in self.full.written}) < 2
        if not symbol or are_alike:
            return self.ui("brief_ends", shown, len(self.sample))
        return self.ui("brief_rows", symbol, shown, len(self.sample))

    def brief_terms(self, room: int) -> list[str]:
        """The chosen token's most important terms, each on one line where that is possible."""
        t = self.token
        title = self._title(t)
        over = cell_len(title) - self.width
        if over > 0:  # the token's text gives way, not what is said about it
            title = self._title(t, max(cell_len(shorten(self.texts[t], 24)) - over, 4))
        lines = self.says(title, "bold")[:1]
        if not self.mask[t]:
            return lines + self.no_terms(t)[:room]
        push = self.push(t)
        lines += self.group_scores()
        left = room + 1 - len(lines) - len(push)
        said = self._important(t)
        chosen = []
        for name in _FIRST:
            if name in said and len(said[name]) <= left:
                chosen.append(name)
                left -= len(said[name])
        for name in _TERMS:
            lines += said[name] if name in chosen else []
        return lines + (push if left >= 0 else [])

    def group_scores(self) -> list[str]:
        """The scores of the group on one line, as many as fit."""
        if self.group is None:
            return []
        members = self.group.members
        scores = [num(member.score) for member in members if member.score is not None]
        shown = list(scores)
        while True:
            end = ", …" if len(shown) < len(scores) else ""
            line = self.ui("group_scores", len(members), ", ".join(shown) + end)
            if cell_len(line) <= self.width or len(shown) < 2:
                return [line] if shown else []
            shown.pop()

    def _important(self, t: int) -> dict[str, list[str]]:
        """The lines of each term; A as a sum where that fits on a line, else from the next A."""
        by_name = {trace.name: trace for trace in self.traces[t]}
        total = by_name.get("advantage_sum")
        if total is not None and ("advantage" not in by_name or len(self.term(total)) == 1):
            by_name["advantage"] = total
        return {name: self.term(by_name[name]) for name in _TERMS if name in by_name}

    def term(self, trace: Trace) -> list[str]:
        """A trace on one line if that is possible with ✓ alone."""
        lines = super().term(trace)
        if len(lines) == 1 or not trace.ok:
            return lines
        said, worked, _ = self.worked(trace)
        rounded = self.ui("rounded") if trace.rounded else ""
        short = f"{said} {worked}   ✓{rounded}"
        return [short] if cell_len(short) <= self.width else lines

    def more(self) -> list[str]:
        """What to type next."""
        lines: list[str] = []
        for key in ("more_here", "more_views", "more_own"):
            lines += self.says(self.ui(key), "dim", "  ")
        return lines
