"""A sample in the terminal: header, fence picture, token table, and one token term by term."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Literal

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import num, subscript
from telescope.explain.arithmetic import moments
from telescope.explain.code import code_of
from telescope.explain.drawing import cell_number, fence, grid, window
from telescope.explain.instructive import size_symbol, sizes_of
from telescope.explain.sample import Sample
from telescope.explain.text import shorten, wrap
from telescope.explain.token_table import TokenTable
from telescope.explain.trace import Trace
from telescope.explain.whitening import advantages, whitening
from telescope.explain.words import Lang, Level, formula, meaning

Extent = Literal["first", "token", "all", "code"]
"""first: one screen of 24 lines. token: everything about one token. all: every token's row too.
code: the source lines behind one token."""

_FENCE_ROWS = {"r[i]": "token_level_rewards", "δ[i]": "deltas"}
"""Rows of the fence picture below the values."""
_POLICY = ("whitened", "clip", "surrogate", "objective")
"""Terms after the last of which it is said which way the token is pushed."""
_MOST_RESPONSES = 8
"""Responses of a batch that are listed."""


def render(
    sample: Sample,
    *,
    token: int | None = None,
    lang: Lang = "zh",
    level: Level = "expert",
    width: int | None = None,
    color: bool | None = None,
    batch: Sequence[Sample] = (),
    extent: Extent = "token",
    above: int = 0,
) -> str:
    """The screen as text. NO_COLOR always wins.

    `token` is taken apart; without it, the one that `instructive` chooses. `batch`: the
    responses that the sample was whitened with. `above`: lines that the caller prints before it,
    for which the first screen leaves room.
    """
    if color is None:
        color = sys.stdout.isatty()
    if os.environ.get("NO_COLOR"):
        color = False
    if width is None:
        width = shutil.get_terminal_size((100, 24)).columns
    kind = screen_class(level, extent)
    screen = kind(sample, token, lang, level, max(width, 40), color, batch, every=extent == "all")
    screen.above = above
    return screen.text()


def screen_class(level: Level, extent: Extent) -> type[TokenTable]:
    """Which view that is."""
    if extent == "code":
        from telescope.explain.source_view import SourceView

        return SourceView
    if level == "kid":
        from telescope.explain.story import ShortStory, Story

        return ShortStory if extent == "first" else Story
    if extent == "first":
        from telescope.explain.first import FirstScreen

        return FirstScreen
    return Screen


class Screen(TokenTable):
    """Everything about one token, and the tokens around it."""

    def parts(self) -> list[list[str]]:
        return [
            self.header(),
            self.picture(),
            self.table(),
            self.group_table(),
            self.terms(),
            self.whitening(),
        ]

    # ---- the fence ----

    def picture(self) -> list[str]:
        """States and values on the posts; tokens, rewards and δ in the gaps.

        It shows as many tokens as fit around the chosen one.
        """
        columns = self.full.columns
        if "values" not in columns or not self.has_critic:
            return []
        end = self.sample.bootstrap
        count = len(self.sample)
        lines, first, last = fence(
            states=(self.ui("state"), [*(f"s{t}" for t in range(count)), self.ui("end")]),
            values=("V[i]", [*self._row("values"), self.cell(end)]),
            tokens=self.tokens,
            rows=[(symbol, self._row(x)) for symbol, x in _FENCE_ROWS.items() if x in columns],
            chosen=self.token,
            width=self.width,
        )
        notes = [self.ui("posts"), self.ui("posts_next", num(end))]
        if last - first < count:
            notes.append(self.ui("window", first, last - 1, count))
        drawn = self.draws(lines)
        for note in notes:
            drawn += self.says(note, "dim")
        return drawn

    def _row(self, column: str) -> list[str]:
        row = []
        for t, x in enumerate(self.full.columns[column]):
            row.append(self.cell(x) if self.mask[t] else "·")
        return row

    # ---- the group ----

    def group_table(self) -> list[str]:
        """A small table: length, score, outcome and A of the responses to the same prompt."""
        group = self.group
        if group is None:
            return []
        count = len(group.members)
        lines = self.says(self.ui("group", count), "bold")
        if not group.is_whole():
            lines += self.says(self.ui("group_part", count), "dim")
        outcomes = group.outcomes
        rows = []
        for k in range(*window(count, group.index, _MOST_RESPONSES)):
            member = group.members[k]
            mark = "▶" if k == group.index else ""
            score = "" if member.score is None else cell_number(member.score)
            numbers = (score, cell_number(outcomes[k]), self._group_advantage(member))
            rows.append([f"{mark}{member.index}", str(len(member.written)), *numbers])
        names = [self.ui(key) for key in ("response_number", "token", "score")]
        lines += self.draws(grid([*names, "o", "A"], rows, self.width))
        if len(rows) < count:
            lines += self.says(self.ui("group_window", len(rows), count), "dim")
        return lines

    def _group_advantage(self, member: Sample) -> str:
        """A of a member; two ends where it differs from token to token."""
        own = advantages(member)
        if not own:
            return ""
        low, high = (cell_number(x, signed=True) for x in (min(own), max(own)))
        return low if low == high else f"{low} … {high}"

    # ---- one token ----

    def terms(self) -> list[str]:
        """The chosen token's numbers, each with its formula; then other estimators."""
        t = self.token
        lines = self.says(self._title(t), "bold")
        if not self.mask[t]:
            return lines + self.no_terms(t)
        last_of_policy = max(
            (k for k, x in enumerate(self.traces[t]) if x.name in _POLICY), default=0
        )
        for k, trace in enumerate(self.traces[t]):
            lines += self._explained(trace)
            if k == last_of_policy:
                lines += self.push(t)
        if not self.has_critic:
            return lines
        others = self.tracer.compare(t, (2,), (self._lam_to_compare(),))
        if others:
            lines.append("")
            lines += self.says(self.ui("compare"), "bold")
        for trace in others:
            lines += self.term(trace)
        return lines

    def push(self, t: int) -> list[str]:
        """Which way the update moves the token's probability."""
        key = push_key(self.full, t, self.traces[t])
        indent = " " * 5
        return self.says(indent + self.ui(key, subscript(t)), "dim", indent) if key else []

    def _title(self, t: int, longest: int = 24) -> str:
        title = self.ui("title", t, shorten(self.texts[t], longest), len(self.sample))
        is_last = t == max(self.sample.written, default=0)
        if self.chosen or is_last or not self.mask[t]:
            return title
        return title + self.why_this_token(t)

    def why_this_token(self, t: int) -> str:
        """Why the view is about this token, see `instructive`; empty without A and Â."""
        sizes = sizes_of(self.full)
        symbol = size_symbol(self.full)
        if symbol not in ("A", "Â"):
            return ""
        if len({sizes[k] for k in self.sample.written}) == 1:
            return f" · {self.ui('same_for_all', symbol)}"
        earlier = self.sample.written[:-1]
        is_largest = all(abs(sizes[k]) <= abs(sizes[t]) for k in earlier)
        key = "largest" if is_largest else "largest_word"
        return f" · {self.ui(key, symbol)}"

    def _explained(self, trace: Trace) -> list[str]:
        """A term and, below it, what it means and which function makes it."""
        said = meaning(trace, self.lang, self.level)
        lines = self.term(trace)
        indent = " " * 5
        if said:
            lines += self.says(indent + said, "dim", indent)
        made = code_of(trace.name, self.sample.settings)
        if made:
            functions = ", ".join(dict.fromkeys(code.function for code in made))
            by = self.ui("made_by", functions, made[0].file)
            lines += self.says(indent + by, "dim", indent)
        return lines

    def worked(self, trace: Trace) -> tuple[str, str, str]:
        """The formula (for a child, in words), the numbers in it, and whether the record agrees."""
        said = formula(trace, self.lang, self.level)
        result = num(trace.result)
        numbers = f"= {trace.substituted}"
        if trace.substituted != result:
            numbers += f" = {result}"
        check = ""
        if trace.recorded is not None:
            mark = "✓" if trace.ok else "✗"
            recorded = self.numbers(num(trace.recorded))
            check = f"{mark} {self._fact('recorded', recorded)}"
            if trace.rounded:
                check += self.ui("rounded")
        return said, self.numbers(numbers), check

    def term(self, trace: Trace) -> list[str]:
        """A trace on one line, or on several where it is too long."""
        said, worked, check = self.worked(trace)
        if check:
            check = f"   {check}"
        one = f"{said} {worked}{check}"
        if cell_len(one) <= self.width:
            lines = [one]
        else:
            lines = wrap(said, self.width, "   ")
            lines += wrap(f"   {worked}", self.width, "     ")
            if cell_len(lines[-1] + check) <= self.width:
                lines[-1] += check
            else:
                lines += wrap(f"  {check}", self.width, "     ")
        style = "bad" if trace.ok is False else None
        return [self.paint(line, style) for line in lines]

    # ---- the batch ----

    def whitening(self) -> list[str]:
        """μ and σ of all responses, then this response's Â by those and by its own.

        Lists as many responses as fit around this one.
        """
        made = whitening(self.batch, self.sample, self.token)
        if not made:
            return []
        by_response = [advantages(sample) for sample in self.batch]
        every = [a for own in by_response for a in own]
        lines = self.says(self.ui("batch", len(by_response), len(every)), "bold")
        for trace in made:
            lines += self._explained(trace)
        lines += self.draws(self._responses(by_response))
        return lines + self.draws(self._both_ways(by_response[self.sample.index], every))

    def _responses(self, by_response: Sequence[Sequence[float]]) -> list[str]:
        """A small table: N, ΣA, μ and σ of each response."""
        rows = []
        for i in range(*window(len(by_response), self.sample.index, _MOST_RESPONSES)):
            own = by_response[i]
            mean, std = moments(own)
            numbers = [cell_number(x) for x in (math.fsum(own), mean, std)]
            rows.append([str(i), str(len(own)), *numbers])
        names = [self.ui(key) for key in ("response_number", "token", "own_mean", "own_std")]
        heads = [*names[:2], "ΣA", *names[2:]]
        return ["", *grid(heads, rows, self.width)]

    def _both_ways(self, own: Sequence[float], every: Sequence[float]) -> list[str]:
        """A small table: A, and Â with μ and σ of the batch and of the response alone."""
        mean, std = moments(every)
        own_mean, own_std = moments(own)
        rows = []
        for t, a in zip(self.sample.written, own, strict=True):
            if t not in self._rows():
                continue
            by_batch = (a - mean) / std
            by_row = (a - own_mean) / own_std
            numbers = [cell_number(x) for x in (a, by_batch, by_row)]
            rows.append([str(t), self.tokens[t], *numbers])
        heads = ["i", self.ui("token"), "A", self.ui("by_batch"), self.ui("by_row")]
        return ["", *grid(heads, rows, self.width, left=(1,))]


def clip_branch(traces: Sequence[Trace]) -> str | None:
    """Which branch of the loss's clip a token took; None if the loss does not clip."""
    for trace in traces:
        is_unused = trace.texts.get("clip:clipped") is trace.texts.get("clip:unused")
        if trace.name == "clip" and not is_unused:
            return trace.state
    return None


def push_key(full: Sample, t: int, traces: Sequence[Trace]) -> str:
    """The sentence on what the update does to token t's probability; empty if the loss can't say.

    Only a loss that is ρ·Â, clipped or not, always moves it with the sign of Â.
    """
    whitened = full.columns.get("whitened")
    loss = full.settings.policy_loss_definition
    if whitened is None or loss is None or "surrogate" not in loss.texts:
        return ""
    if not whitened[t]:
        return "push_none"
    side = "up" if whitened[t] > 0 else "down"
    branch = clip_branch(traces)
    return f"push_{side}_{branch}" if branch in ("clipped", "dual") else f"push_{side}"
