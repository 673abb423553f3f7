"""A sample for a twelve-year-old: one story, no symbols, one decimal.

A writer writes an answer word by word. A forecaster guesses before each word how many points are
still to come. A teacher gives the score at the end.
"""

from __future__ import annotations

from telescope.explain.arithmetic import moments
from telescope.explain.drawing import window
from telescope.explain.first import LINES
from telescope.explain.terminal import Screen, push_key
from telescope.explain.text import about, shorten
from telescope.explain.trace import Trace
from telescope.explain.whitening import advantages, whitening
from telescope.explain.words import formula, meaning

_TOLD = ("V", "delta", "A")
"""Columns of the table."""
_IMPORTANT = ("delta", "baseline", "advantage", "whitened")
"""Terms of the short story."""
_SHORT_TABLE = 6
"""Words in the table of the short story."""
_UNTOLD = ("advantage_sum", "surrogate", "n_step", "weight")
"""Terms that say the same once more, or need a formula."""


class Story(Screen):
    """The story of one word, and a small table of all."""

    def parts(self) -> list[list[str]]:
        return [self.header(), self.table(), self.terms(), self.whitening(), self.more()]

    def numbers(self, text: str) -> str:
        return text

    def cell(self, x: float, signed: bool = False) -> str:
        """A number of the table: one decimal."""
        text = about(x, "0")
        return f"+{text}" if signed and x > 0 and text != "0" else text.replace("−", "-")

    def says_about(self, x: float) -> str:
        return about(x, self.ui("almost"))

    # ---- header and table ----

    def _facts(self) -> list[str]:
        x = self.sample
        facts = []
        if x.score is not None:
            facts.append(self.ui("teacher", self.says_about(x.score)))
        facts += self._place()
        return facts + ([self.ui("cut")] if x.truncated else [])

    def table(self) -> list[str]:
        rows = self._rows()
        told = [column for column in self.columns if column.key in _TOLD]
        drawn = self.draws(self._lines(told, rows))
        notes = []
        if len(rows) < len(self.sample):
            notes.append(self.ui("rows", rows[0], rows[-1], len(self.sample)))
        if "values" in self.full.columns and self.has_critic:
            notes.append(self.ui("posts"))
        notes += self._notes_off_the_mask()
        notes.append(self._count_of_checks())
        for note in notes:
            drawn += self.says(note, "dim")
        return drawn

    # ---- one word ----

    def terms(self) -> list[str]:
        t = self.token
        lines = self.says(self._title(t), "bold")
        if not self.mask[t]:
            return lines + self.no_terms(t)
        lines += self.group_story()
        for trace in self.traces[t]:
            if trace.name not in _UNTOLD:
                lines += self.term(trace) + self._meaning(trace)
        return lines + self._lesson(t)

    def group_story(self) -> list[str]:
        return [] if self.group is None else self.says(self.group.told(self.lang))

    def _title(self, t: int, longest: int = 24) -> str:
        title = self.ui("title", t, shorten(self.texts[t], longest), len(self.sample))
        return title if self.chosen else title + self.why_this_token(t)

    def term(self, trace: Trace) -> list[str]:
        """The formula in words, and about how much it is."""
        tick = "" if trace.ok is None else " ✓" if trace.ok else " ✗"
        said = formula(trace, self.lang, self.level)
        text = self.ui("told", said, self.says_about(trace.result)) + tick
        return self.says(text, "bad" if trace.ok is False else None, "   ")

    def _meaning(self, trace: Trace) -> list[str]:
        said = meaning(trace, self.lang, self.level)
        indent = " " * 5
        return self.says(indent + said, "dim", indent) if said else []

    def _lesson(self, t: int) -> list[str]:
        """Whether the word will be written more or less often."""
        key = push_key(self.full, t, self.traces[t])
        return self.says(self.ui(key, self.texts[t])) if key else []

    # ---- the batch ----

    def whitening(self) -> list[str]:
        """The average and the usual distance from it."""
        if not whitening(self.batch, self.sample, self.token):
            return []
        every = [a for sample in self.batch for a in advantages(sample)]
        mean, std = moments(every)
        count = len(self.batch)
        numbers = (self.says_about(mean), self.says_about(std))
        lines = self.says(self.ui("batch", count, len(every)), "bold")
        return lines + self.says(self.ui("batch_told", *numbers))

    def more(self) -> list[str]:
        return self.says(self.ui("more_kid"), "dim")


class ShortStory(Story):
    """The same on one screen: what is most important, as far as there is room."""

    def parts(self) -> list[list[str]]:
        others = [self.header(), self.table(), self.more()]
        used = self.above + sum(map(len, others)) + 3  # with the empty lines between the parts
        return [*others[:2], self._short_terms(LINES - used), others[2]]

    def _rows(self) -> list[int]:
        count = len(self.sample)
        return list(range(*window(count, self.token, _SHORT_TABLE)))

    def _short_terms(self, room: int) -> list[str]:
        """The most important terms of the word, with what they mean where that fits."""
        lines = Story.terms(self)
        if len(lines) <= room:
            return lines
        t = self.token
        by_name = {trace.name: trace for trace in self.traces[t]}
        lesson = self._lesson(t)
        lines = self.says(self._title(t), "bold")[:1] + self.group_story()
        kept = [by_name[name] for name in _IMPORTANT if name in by_name]
        terms = [self.term(trace) for trace in kept]
        spare = room - len(lines) - len(lesson) - sum(map(len, terms))
        while spare < 0 and terms:
            spare += len(terms.pop())
        for trace, said in zip(kept, terms, strict=False):
            meant = self._meaning(trace)
            lines += said
            if len(meant) <= spare:
                lines += meant
                spare -= len(meant)
        return lines + lesson
