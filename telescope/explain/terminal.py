"""A sample in the terminal: header, fence picture, token table, and one token term by term."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import listed, num
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import moments
from telescope.explain.drawing import Fence, TableColumn, cell_number, in_blocks, joined, window
from telescope.explain.sample import ActorUpdate, Sample
from telescope.explain.settings import Settings
from telescope.explain.text import both_ends, pad, pieces, plain, shorten, visible, wrap
from telescope.explain.trace import Trace, Tracer
from telescope.explain.whitening import advantages, whitening
from telescope.explain.words import Lang, Level, column_name, formula, meaning, ui

_STYLES = {
    "bold": "1",
    "dim": "2",
    "bad": "1;31",
    "up": "38;5;172",  # orange
    "down": "38;5;99",  # purple
}
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
_FENCE_ROWS = {"reward": "token_level_rewards", "delta": "deltas"}
_SYMBOLS = {"V": "V[i]", "reward": "r[i]", "delta": "δ[i]"}
"""Rows of the fence picture; a child sees words instead of symbols."""
_SIGNED = ("kl", "reward", "delta", "A", "white")
_UPDATE_GROUP = 4
_LONGEST_QUOTE = 2048
"""Characters of a prompt or response that are looked at from either end."""


def render(
    sample: Sample,
    *,
    token: int | None = None,
    lang: Lang = "zh",
    level: Level = "expert",
    width: int | None = None,
    color: bool | None = None,
    update: int = -1,
    batch: Sequence[Sample] = (),
) -> str:
    """The screen as text. NO_COLOR always wins.

    `token` is taken apart; without it, the one with the largest |A| before the last. `batch`: the
    responses that the sample was whitened with.
    """
    if color is None:
        color = sys.stdout.isatty()
    if os.environ.get("NO_COLOR"):
        color = False
    if width is None:
        width = shutil.get_terminal_size((100, 24)).columns
    return Screen(sample, token, lang, level, max(width, 40), color, update, batch).text()


class Screen:
    """What is shown, part by part.

    How a sentence, a quotation, a drawing or a term looks is left to the methods `says`, `quotes`,
    `draws` and `term`, which a Markdown page overrides.
    """

    def __init__(
        self,
        sample: Sample,
        token: int | None,
        lang: Lang,
        level: Level,
        width: int,
        color: bool,
        update: int = -1,
        batch: Sequence[Sample] = (),
    ) -> None:
        count = len(sample.actor_updates)
        if count and not -count <= update < count:
            raise TelescopeError(f"no update {update}: this sample has {count}, 0 to {count - 1}")
        self.sample = sample
        self.mask = sample.mask
        self.lang = lang
        self.level = level
        self.width = width
        self.color = color
        self.update = update
        self.batch = batch
        self.tracer = Tracer(sample)
        self.full = self.tracer.full
        self.traces = [self.tracer.traces(t, update) for t in range(len(sample))]
        self.verdicts = [self.tracer.verdicts(t, update) for t in range(len(sample))]
        self.texts = pieces(sample.token_bytes)
        self.tokens = [self._label(t) for t in range(len(sample))]
        self.chosen = token is not None
        self.token = self._largest() if token is None else token
        self.tracer.traces(self.token, update)  # refuses a token that is not there
        self.columns = self._columns()

    def text(self) -> str:
        """All parts, with an empty line between them."""
        parts = ["\n".join(line.rstrip() for line in part) for part in self.parts() if part]
        return "\n\n".join(parts) + "\n"

    def parts(self) -> list[list[str]]:
        return [self.header(), self.picture(), self.table(), self.terms(), self.whitening()]

    # ---- how things look ----

    def says(self, text: str, style: str | None = None, indent: str = "") -> list[str]:
        """A sentence."""
        lines = wrap(text, self.width, indent)
        return [self.paint(line, style) for line in lines]

    def quotes(self, name: str, text: str) -> list[str]:
        """What a model read or wrote."""
        shown = both_ends(text, self.width - 10)
        return [self.paint(f"{name} {shown}", "bold")]

    def draws(self, lines: list[str]) -> list[str]:
        """Lines whose columns must stay under each other."""
        return lines

    def paint(self, text: str, style: str | None) -> str:
        """The text in a style of the terminal."""
        if not self.color or style is None:
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    def ui(self, key: str, *values: object) -> str:
        """A label of words.toml."""
        return ui(key, self.lang, self.level, *values)

    def head(self, key: str) -> str:
        """The name of a column of the table."""
        return column_name(key, self.lang, self.level)

    def numbers(self, text: str) -> str:
        """A text with numbers; for a child, without powers of ten."""
        if self.level == "kid":
            return plain(text, self.ui("almost"))
        return text

    def cell(self, x: float, signed: bool = False) -> str:
        """A number of a drawing. For a child, what would round to nothing is ≈0."""
        if self.level == "kid" and 0 < abs(x) < 5e-4:
            return "≈0"
        return cell_number(x, signed)

    # ---- tokens ----

    def _is_tool(self, t: int) -> bool:
        """Whether a tool wrote the token."""
        return not self.mask[t] and t not in self.sample.padding

    def _label(self, t: int) -> str:
        mark = "⚙" if self._is_tool(t) else ""
        return shorten(mark + self.texts[t], 12)

    def _largest(self) -> int:
        """The token with the largest |A|: not the last one, where A is δ, unless it is alone."""
        columns = self.full.columns
        sizes = columns.get("advantages")
        if sizes is None:
            sizes = columns.get("token_level_rewards", [0.0] * len(self.sample))
        at = self.tracer.steps.at
        candidates = at[:-1] or at
        return max(candidates, key=lambda t: abs(sizes[t]), default=0)

    def _update(self) -> ActorUpdate | None:
        """The update that is shown."""
        if not self.full.actor_updates:
            return None
        return self.full.actor_updates[self.update]

    # ---- header ----

    def header(self) -> list[str]:
        """Prompt, response, score and settings."""
        x = self.sample
        lines: list[str] = []
        for key, text in (("prompt", x.prompt), ("response", x.response)):
            if not text:
                continue
            start = text[:_LONGEST_QUOTE]
            end = text[_LONGEST_QUOTE:][-_LONGEST_QUOTE:]
            shown = visible(start + end, spaces=False)
            lines += self.quotes(self.ui(key), shown)
        facts = "   ".join(self._facts())
        return lines + self.says(self.numbers(facts))

    def _facts(self) -> list[str]:
        x = self.sample
        facts: list[str] = []
        if x.score is not None:
            facts.append(self._fact("score", num(x.score)))
        for name, value in x.parts.items():
            facts.append(f"{visible(name)} {num(value)}")
        facts.append(self._fact("beta", num(x.settings.credit.kl_coef)))
        facts.append(self._fact("gamma", num(x.settings.gamma)))
        facts.append(self._estimator())
        if x.run:
            facts.append(visible(x.run))
            facts.append(self._fact("step", x.step))
        if x.run or x.count > 1:
            facts.append(self._fact("sample", f"{x.index}/{x.count}"))
        if x.bootstrap and x.truncated:
            facts.append(self.ui("cut_v", num(x.bootstrap)))
        elif x.truncated:
            facts.append(self.ui("cut"))
        return facts

    def _fact(self, key: str, value: object) -> str:
        return f"{self.ui(key)} {value}"

    def _estimator(self) -> str:
        """λ where there is one, else the estimator's name."""
        settings = self.sample.settings
        if settings.own_lam is not None:
            return self._fact("lam", num(self._lam()))
        return self._fact("estimator", settings.estimator_definition.name)

    def _lam(self) -> float:
        tokens = len(self.tracer.steps.at)
        return self.sample.settings.lam(tokens)

    def _lam_to_compare(self) -> float:
        """The run's λ; without one, the usual λ."""
        if self.sample.settings.own_lam is not None:
            return self._lam()
        return Settings.of().lam(len(self.tracer.steps.at))

    # ---- the fence ----

    def picture(self) -> list[str]:
        """States and values on the posts; tokens, rewards and δ in the gaps.

        It shows as many tokens as fit around the chosen one.
        """
        columns = self.full.columns
        if "values" not in columns:
            return []
        end = self.sample.bootstrap
        rows = {}
        for key, column in _FENCE_ROWS.items():
            if column in columns:
                rows[self._row_name(key)] = self._row(column)
        fence = Fence(
            states=self.ui("state"),
            end=self.ui("end"),
            values=self._row_name("V"),
            posts=[*self._row("values"), self.cell(end)],
            tokens=self.tokens,
            rows=rows,
        )
        lines, first, last = fence.draw(self.token, self.width)

        notes = [self.ui("posts"), self.ui("posts_n", num(end))]
        count = len(self.sample)
        if last - first < count:
            notes.append(self.ui("window", first, last - 1, count))
        drawn = self.draws(lines)
        for note in notes:
            drawn += self.says(note, "dim")
        return drawn

    def _row_name(self, key: str) -> str:
        if self.level == "kid":
            return self.head(key)
        return _SYMBOLS[key]

    def _row(self, column: str) -> list[str]:
        row = []
        for t, x in enumerate(self.full.columns[column]):
            row.append(self.cell(x) if self.mask[t] else "·")
        return row

    # ---- the table ----

    def table(self) -> list[str]:
        """A row for every token, in blocks below each other where the columns do not fit."""
        digits = len(str(len(self.sample) - 1))
        token_head = self.ui("token")
        side = max(cell_len(text) for text in (token_head, *self.tokens))
        front = digits + 3 + side + 1
        index_head = self.ui("index").rjust(digits + 1)
        corner = pad(f"{index_head}  {token_head}", front)

        lines: list[str] = []
        for block in in_blocks(self.columns, self.width - front):
            if lines:
                lines.append("")
            heads = [pad(column.head, column.width, ">") for column in block]
            head = corner + joined(block, heads)
            lines.append(self.paint(head.rstrip(), "bold"))
            for t, token in enumerate(self.tokens):
                cells = [self._painted(column, t) for column in block]
                row_front = self._row_front(t, digits) + pad(token, side + 1)
                lines.append(row_front + joined(block, cells))

        drawn = self.draws(lines)
        for note in self._legend():
            drawn += self.says(note, indent="  ")
        return drawn

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
        elif column.colored and self.mask[t]:
            is_negative = cell.lstrip().startswith("-")
            style = "down" if is_negative else "up"
        return self.paint(cell, style)

    def _columns(self) -> list[TableColumn]:
        made = []
        for key, group, name in _LAYOUT:
            if name not in self.full.columns:
                continue
            if key == "score" and not self._has_dense_scores():
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
        last = max(self.tracer.steps.at, default=0)
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
        for t, clipped in enumerate(update.clipped):
            if clipped:
                marks[t] = "✂"
        for t, clipped in enumerate(update.dual_clipped):
            if clipped:
                marks[t] = "✂✂"
        for t in range(len(marks)):
            if self._is_wrong("clip", t):
                marks[t] += "✗"
        return marks

    def _is_wrong(self, key: str, t: int) -> bool:
        verdicts = self.verdicts[t]
        names = _TRACES_OF.get(key, ())
        return not all(verdicts.get(name, True) for name in names)

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
        return self.ui("checked", len(oks), right, wrong)

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

    # ---- one token ----

    def terms(self) -> list[str]:
        """The chosen token's numbers, each with its formula; then other estimators."""
        t = self.token
        lines = self.says(self._title(t), "bold")
        if not self.mask[t]:
            is_padding = t in self.sample.padding
            key = "no_terms_padding" if is_padding else "no_terms"
            return lines + self.says(self.ui(key))
        for trace in self.traces[t]:
            lines += self._explained(trace)
        others = self.tracer.compare(t, (2,), (self._lam_to_compare(),))
        if others:
            lines.append("")
            lines += self.says(self.ui("compare"), "bold")
        for trace in others:
            lines += self.term(trace)
        return lines

    def _title(self, t: int) -> str:
        token = self.ui("token")
        text = shorten(self.texts[t], 24)
        title = f"{token} {t} «{text}»"
        if not self.mask[t]:
            return title
        step = sum(self.mask[: t + 1])
        ordinal = self.ui("ordinal", t, t + 1, step)
        title = f"{title} ({ordinal})"
        is_last = step == sum(self.mask)
        if self.chosen or is_last:
            return title
        return f"{title} · {self.ui('largest')}"

    def _explained(self, trace: Trace) -> list[str]:
        """A term and, below it, what it means."""
        said = meaning(trace, self.lang, self.level)
        lines = self.term(trace)
        if said:
            indent = " " * 5
            lines += self.says(indent + said, "dim", indent)
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

        index = self.sample.index
        first, last = window(len(by_response), index, 8)
        notes = [self._row_of_batch(i, by_response[i]) for i in range(first, last)]
        own = by_response[index]
        notes.append(self._whitened_by("by_batch", own, every))
        notes.append(self._whitened_by("by_row", own, own))
        for note in notes:
            lines += self.says(self.numbers(note), indent="  ")
        return lines

    def _row_of_batch(self, index: int, own: Sequence[float]) -> str:
        mean, std = moments(own)
        total = math.fsum(own)
        return self.ui("batch_row", index, len(own), num(total), num(mean), num(std))

    def _whitened_by(self, key: str, own: Sequence[float], others: Sequence[float]) -> str:
        mean, std = moments(others)
        whitened = [(a - mean) / std for a in own]
        return self.ui(key, self.sample.index, listed(whitened))
