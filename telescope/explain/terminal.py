"""A sample in the terminal: header, fence-post picture, token table, and one token term by term."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import ZERO, listed, num
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import lam_of, moments
from telescope.explain.sample import Sample
from telescope.explain.text import both_ends, pad, pieces, plain, shorten, visible, wrap
from telescope.explain.trace import Trace, Tracer
from telescope.explain.whitening import advantages, whitening
from telescope.explain.words import Lang, Level, column_name, formula, meaning, ui

_STYLES = {
    "bold": "1",
    "dim": "2",
    "bad": "1;31",
    "up": "38;5;172",
    "down": "38;5;99",
}  # orange up, purple down
_TRACES_OF: dict[str, tuple[str, ...]] = {
    "kl": ("kl",),
    "reward": ("reward",),
    "delta": ("delta",),
    "A": ("advantage",),
    "R": ("return",),
}
_TRACES_OF |= {
    "white": ("whitened",),
    "ratio": ("ratio", "weight"),
    "clip": ("clip", "surrogate", "objective"),
}
"""Column of the table -> traces that check its number."""


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
    """The screen as text. Without `token`, the one with the largest |A| before the last is taken apart; NO_COLOR always wins.

    `batch`: the responses that the sample was whitened with.
    """
    if color is None:
        color = sys.stdout.isatty()
    width = max(width or shutil.get_terminal_size((100, 24)).columns, 40)
    return Screen(
        sample, token, lang, level, width, color and not os.environ.get("NO_COLOR"), update, batch
    ).text()


@dataclass(frozen=True)
class _Column:
    key: str
    group: int
    cells: list[str]
    style: str | None = None
    """`sign`: orange where positive, purple where negative."""


class Screen:
    """What is shown, part by part; how a sentence, a drawing or a term looks is left to four methods, which a page has its own of."""

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
        self.sample, self.lang, self.level, self.width, self.color, self.update = (
            sample,
            lang,
            level,
            width,
            color,
            update,
        )
        self.batch = batch
        count = len(sample.actor_updates)
        if count and not -count <= update < count:
            raise TelescopeError(f"no update {update}: this sample has {count}, 0 to {count - 1}")
        tracer = Tracer(sample)
        self.full = tracer.full
        self.tracer, self.traces = tracer, [tracer.traces(t, update) for t in range(len(sample))]
        self.verdicts = [tracer.verdicts(t, update) for t in range(len(sample))]
        self.texts = pieces(sample.token_bytes)
        tools = [
            "⚙" if not m and t not in sample.padding else "" for t, m in enumerate(sample.mask)
        ]
        self.tokens = [
            shorten(tool + text, 12) for tool, text in zip(tools, self.texts, strict=True)
        ]
        self.chosen = token is not None
        self.token = self._largest() if token is None else token
        tracer.traces(self.token, update)  # refuses a token that is not there
        self.columns = self._columns()

    def text(self) -> str:
        return (
            "\n\n".join("\n".join(line.rstrip() for line in part) for part in self.parts() if part)
            + "\n"
        )

    def parts(self) -> list[list[str]]:
        return [self.header(), self.picture(), self.table(), self.terms(), self.whitening()]

    def says(self, text: str, style: str | None = None, indent: str = "") -> list[str]:
        return [self.paint(line, style) for line in wrap(text, self.width, indent)]

    def quotes(self, name: str, text: str) -> list[str]:
        return [self.paint(f"{name} {both_ends(text, self.width - 10)}", "bold")]

    def draws(self, lines: list[str]) -> list[str]:
        return lines

    def ui(self, key: str, *values: object) -> str:
        return ui(key, self.lang, self.level, *values)

    def paint(self, text: str, style: str | None) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color and style else text

    def _largest(self) -> int:
        """Not the last one unless there is no other: there A is δ, whatever the estimator."""
        sizes = (
            self.full.columns.get("advantages")
            or self.full.columns.get("token_level_rewards")
            or [0.0] * len(self.sample)
        )
        at = self.tracer.steps.at
        return max(at[:-1] or at, key=lambda t: abs(sizes[t]), default=0)

    def numbers(self, text: str) -> str:
        return plain(text, self.ui("almost")) if self.level == "kid" else text

    def cell(self, x: float, signed: bool = False) -> str:
        """For a child, what would round to nothing is just that."""
        return "≈0" if self.level == "kid" and 0 < abs(x) < 5e-4 else _cell(x, signed)

    # ---- header ----

    def header(self) -> list[str]:
        s, x = self.sample.settings, self.sample
        lines = list[str]()
        for key, text in (("prompt", x.prompt), ("response", x.response)):
            if text:
                lines += self.quotes(
                    self.ui(key), visible(text[:2048] + text[2048:][-2048:], spaces=False)
                )
        facts = [] if x.score is None else [f"{self.ui('score')} {num(x.score)}"]
        facts += [f"{visible(name)} {num(value)}" for name, value in x.parts.items()]
        facts += [
            f"{self.ui('beta')} {num(s.credit.kl_coef)}",
            f"{self.ui('gamma')} {num(s.gamma)}",
        ]
        lam = num(lam_of(s, len(self.tracer.steps.at)))
        facts.append(
            f"{self.ui('lam')} {lam}"
            if hasattr(s.credit, "lam")
            else f"{self.ui('estimator')} {s.estimator_definition.name}"
        )
        if x.run:
            facts += [visible(x.run), f"{self.ui('step')} {x.step}"]
        if x.run or x.count > 1:
            facts.append(f"{self.ui('sample')} {x.index}/{x.count}")
        if x.truncated:
            facts.append(self.ui("cut_v", num(x.bootstrap)) if x.bootstrap else self.ui("cut"))
        return lines + self.says(self.numbers("   ".join(facts)))

    # ---- the fence posts ----

    def picture(self) -> list[str]:
        """States and values on the posts, tokens, rewards and δ in the gaps, as many tokens as fit around the chosen one."""
        c, mask = self.full.columns, self.sample.mask
        if "values" not in c:
            return []
        rows = [("r", "reward", "token_level_rewards"), ("δ", "delta", "deltas")]
        kid = self.level == "kid"
        rows = [
            (column_name(key, self.lang, "kid") if kid else f"{sign}[i]", key, name)
            for sign, key, name in rows
            if name in c
        ]
        value_name = column_name("V", self.lang, "kid") if kid else "V[i]"
        left = (
            max(
                cell_len(name)
                for name in (self.ui("state"), value_name, *(name for name, _, _ in rows))
            )
            + 4
        )
        tokens = self.tokens
        numbers = [
            [self.cell(c[name][t]) if mask[t] else "·" for t in range(len(mask))]
            for _, _, name in rows
        ]
        posts = [self.cell(v) if m else "·" for v, m in zip(c["values"], mask, strict=True)] + [
            self.cell(self.sample.bootstrap)
        ]
        first, last = _window(len(mask), self.token, max((self.width - left - 4) // 8, 1))
        gap = max(
            [7, *(cell_len(x) + 2 for row in (tokens, posts, *numbers) for x in row[first:last])]
        )
        first, last = _window(len(mask), self.token, max((self.width - left - 4) // gap, 1))
        at = [left + gap * k for k in range(last - first + 1)]
        middles = [x + (gap + 1) // 2 for x in at[:-1]]
        states = [self.ui("end") if t == len(mask) else f"s{t}" for t in range(first, last + 1)]
        lines = [
            _place([(0, self.ui("state")), *zip(at, states, strict=True)]),
            _place([*((x, "|") for x in at), *zip(middles, tokens[first:last], strict=True)]),
            _place([(0, value_name), *zip(at, posts[first : last + 1], strict=True)]),
        ]
        for (name, _, _), cells in zip(rows, numbers, strict=True):
            lines.append(_place([(0, name), *zip(middles, cells[first:last], strict=True)]))
        end = num(self.sample.bootstrap)
        notes = [self.ui("posts"), self.ui("posts_n", end)]
        if last - first < len(mask):
            notes.append(self.ui("window", first, last - 1, len(mask)))
        return self.draws(lines) + [line for note in notes for line in self.says(note, "dim")]

    # ---- the table ----

    def table(self) -> list[str]:
        checks = [" " if not row else "✓" if all(row.values()) else "✗" for row in self.verdicts]
        digits = len(str(len(self.sample) - 1))
        names = [
            ("▶" if t == self.token else " ") + f"{t:>{digits}}{check} "
            for t, check in enumerate(checks)
        ]
        tokens = self.tokens
        side = max([cell_len(self.ui("token")), *map(cell_len, tokens)])
        front = digits + 3 + side + 1
        head_front = pad(f"{self.ui('index'):>{digits + 1}}  {self.ui('token')}", front)
        lines: list[str] = []
        for block in self._blocks(self.columns, front):
            if lines:
                lines.append("")
            widths = [
                max([cell_len(column_name(c.key, self.lang, self.level)), *map(cell_len, c.cells)])
                for c in block
            ]
            head = [
                pad(column_name(c.key, self.lang, self.level), w, ">")
                for c, w in zip(block, widths, strict=True)
            ]
            lines.append(self.paint((head_front + _joined(block, head)).rstrip(), "bold"))
            for t in range(len(self.sample)):
                cells = [
                    self._colored(c, t, pad(c.cells[t], w, ">"))
                    for c, w in zip(block, widths, strict=True)
                ]
                style = "bad" if checks[t] == "✗" else "bold" if t == self.token else None
                lines.append(
                    self.paint(names[t], style) + pad(tokens[t], side + 1) + _joined(block, cells)
                )
        return self.draws(lines) + [
            line for note in self._legend() for line in self.says(note, indent="  ")
        ]

    def _columns(self) -> list[_Column]:
        c, mask, n = self.full.columns, self.sample.mask, len(self.sample)
        last = max((t for t in range(n) if mask[t]), default=0)
        dense = any(x for t, x in enumerate(c.get("token_level_scores", ())) if t != last)
        layout = [("old", 0, "old_log_probs"), ("ref", 0, "ref_log_prob"), ("kl", 0, "kl")]
        layout += [("score", 1, "token_level_scores")] * dense + [
            ("reward", 1, "token_level_rewards")
        ]
        layout += [
            ("V", 2, "values"),
            ("delta", 2, "deltas"),
            ("A", 2, "advantages"),
            ("R", 2, "returns"),
            ("white", 3, "whitened"),
        ]
        signed = ("kl", "reward", "delta", "A", "white")
        made = [
            _Column(
                key,
                group,
                [self._number(key, t, c[name][t], key in signed) for t in range(n)],
                "sign" if key in ("A", "white") else None,
            )
            for key, group, name in layout
            if name in c
        ]
        if self.full.actor_updates:
            u = self.full.actor_updates[self.update]
            made.append(
                _Column("ratio", 4, [self._number("ratio", t, u.ratio[t], False) for t in range(n)])
            )
            marks = [
                "✂✂" if dual else "✂" if cut else ""
                for dual, cut in zip(u.dual_clipped, u.clipped, strict=True)
            ] or [""] * n
            made.append(
                _Column(
                    "clip",
                    4,
                    [
                        mark + ("✗" if self._wrong("clip", t) else "")
                        for t, mark in enumerate(marks)
                    ],
                )
            )
        return made

    def _number(self, key: str, t: int, x: float, signed: bool) -> str:
        if not self.sample.mask[t]:
            return "·"
        flipped = (
            key == "white" and self.full.columns["advantages"][t] * x < 0
            if "advantages" in self.full.columns
            else False
        )
        mark = "✗" if self._wrong(key, t) else ""
        return self.cell(x, signed) + ("⇅" if flipped else "") + mark

    def _wrong(self, key: str, t: int) -> bool:
        return not all(self.verdicts[t].get(name, True) for name in _TRACES_OF.get(key, ()))

    def _blocks(self, columns: Sequence[_Column], front: int) -> list[list[_Column]]:
        """Groups of columns side by side as far as they fit; the rest in further tables below."""
        blocks: list[list[_Column]] = []
        room = 0
        for group in sorted({c.group for c in columns}):
            members = [c for c in columns if c.group == group]
            widths = [
                max([cell_len(column_name(c.key, self.lang, self.level)), *map(cell_len, c.cells)])
                + 2
                for c in members
            ]
            atoms = [members] if sum(widths) + 1 + front <= self.width else [[c] for c in members]
            for atom in atoms:
                need = sum(widths[members.index(c)] for c in atom) + 1
                if not blocks or need > room:
                    blocks.append([])
                    room = self.width - front
                blocks[-1] += atom
                room -= need
        return blocks

    def _colored(self, column: _Column, t: int, cell: str) -> str:
        if "✗" in cell:
            return self.paint(cell, "bad")
        if column.style == "sign" and self.sample.mask[t]:
            return self.paint(cell, "down" if cell.lstrip().startswith("-") else "up")
        return cell

    def _legend(self) -> list[str]:
        marks = [cell for column in self.columns for cell in column.cells]
        notes = []
        if any(not m and t not in self.sample.padding for t, m in enumerate(self.sample.mask)):
            notes.append(f"⚙ {self.ui('tool')}")
        if self.sample.padding:
            first, last = min(self.sample.padding), max(self.sample.padding)
            notes.append(self.ui("padding", first if first == last else f"{first}–{last}"))
        for t, held in self.sample.padding.items():
            if held:
                notes.append(
                    self.ui(
                        "held",
                        t,
                        self.numbers(
                            ", ".join(f"{self.ui(name)} {num(x)}" for name, x in held.items())
                        ),
                    )
                )
        for sign, key in (("⇅", "flip"), ("✂✂", "dual_mark")):
            if any(sign in cell for cell in marks):
                notes.append(self.ui(key))
        if any(cell.startswith("✂") and not cell.startswith("✂✂") for cell in marks):
            notes.append(self.ui("clip_mark"))
        if self.full.actor_updates:
            u = self.full.actor_updates[self.update]
            notes.append(
                self.ui(
                    "given" if u.epoch < 0 else "update",
                    u.epoch,
                    u.minibatch,
                    len(self.full.actor_updates),
                )
            )
        if self.tracer.alone:
            notes.append(self.ui("alone"))
        oks = [ok for row in self.verdicts for ok in row.values()]
        notes.append(
            self.ui("checked", len(oks), sum(oks), len(oks) - sum(oks))
            if oks
            else self.ui("unrecorded")
        )
        return notes

    # ---- one token ----

    def terms(self) -> list[str]:
        t, s = self.token, self.sample.settings
        step = sum(self.sample.mask[: t + 1])
        title = f"{self.ui('token')} {t} «{shorten(self.texts[t], 24)}»"
        if self.sample.mask[t]:
            title += f" ({self.ui('ordinal', t, t + 1, step)})" + (
                "" if self.chosen or step == sum(self.sample.mask) else f" · {self.ui('largest')}"
            )
        lines = self.says(title, "bold")
        if not self.sample.mask[t]:
            return lines + self.says(
                self.ui("no_terms_padding" if t in self.sample.padding else "no_terms")
            )
        for trace in self.traces[t]:
            lines += self._explained(trace)
        others = self.tracer.compare(t, (2,), (lam_of(s, len(self.tracer.steps.at)),))
        lines += ["", *self.says(self.ui("compare"), "bold")] if others else []
        return lines + [line for trace in others for line in self.term(trace)]

    # ---- the batch ----

    def whitening(self) -> list[str]:
        """μ and σ of all responses, those of each (as many as fit around this one), and this one's Â by either."""
        made = whitening(self.batch, self.sample, self.token)
        if not made:
            return []
        tokens = [advantages(x) for x in self.batch]
        lines = self.says(self.ui("batch", len(tokens), sum(map(len, tokens))), "bold")
        for trace in made:
            lines += self._explained(trace)
        first, last = _window(len(tokens), self.sample.index, 8)
        notes = [
            self.ui("batch_row", i, len(a), *map(num, (math.fsum(a), *moments(a))))
            for i, a in enumerate(tokens[first:last], first)
        ]
        own = tokens[self.sample.index]
        for key, (mean, std) in (
            ("by_batch", moments([a for row in tokens for a in row])),
            ("by_row", moments(own)),
        ):
            notes.append(self.ui(key, self.sample.index, listed([(a - mean) / std for a in own])))
        return lines + [
            line for note in notes for line in self.says(self.numbers(note), indent="  ")
        ]

    def _explained(self, trace: Trace) -> list[str]:
        said = meaning(trace, self.lang, self.level)
        return self.term(trace) + (self.says(f"     {said}", "dim", "     ") if said else [])

    def worked(self, trace: Trace) -> tuple[str, str, str]:
        """The formula (for a child, in words), the numbers in it, and whether the record agrees."""
        check = (
            ""
            if trace.recorded is None
            else f"{'✓' if trace.ok else '✗'} {self.ui('recorded')} {self.numbers(num(trace.recorded))}"
        )
        same = trace.substituted == num(trace.result)
        numbers = self.numbers(
            f"= {trace.substituted}" + ("" if same else f" = {num(trace.result)}")
        )
        return formula(trace, self.lang, self.level), numbers, check

    def term(self, trace: Trace) -> list[str]:
        said, worked, check = self.worked(trace)
        check, style = f"   {check}" if check else "", "bad" if trace.ok is False else None
        one = f"{said} {worked}{check}"
        if cell_len(one) <= self.width:
            return [self.paint(one, style)]
        lines = [*wrap(said, self.width, "   "), *wrap(f"   {worked}", self.width, "     ")]
        if cell_len(lines[-1] + check) <= self.width:
            lines[-1] += check
        else:
            lines += wrap(f"  {check}", self.width, "     ")
        return [self.paint(line, style) for line in lines]


def _cell(x: float, signed: bool = False) -> str:
    """Three decimals, no leading zero; what would round to nothing shows its size: 3e-5."""
    if not math.isfinite(x):
        return str(x)
    x = 0.0 if abs(x) < ZERO else x
    small = x and abs(x) < 5e-4
    text = f"{x:.0e}".replace("e-0", "e-") if small else f"{x:.3f}" if abs(x) < 1e4 else f"{x:.3g}"
    text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
    return f"+{text}" if signed and x > 0 else text.replace("-.000", ".000")


def _window(length: int, middle: int, fit: int) -> tuple[int, int]:
    """first, last (exclusive) of at most `fit` of `length`, around `middle`."""
    first = max(min(middle - fit // 2, length - fit), 0)
    return first, min(first + fit, length)


def _place(items: Sequence[tuple[int, str]]) -> str:
    """Texts centred at their cells; the first column (0) starts there."""
    line = ""
    for x, text in sorted(items):
        start = x if x == 0 else x - cell_len(text) // 2
        line = (
            pad(
                line,
                start
                if not line
                else max(start, cell_len(line) + (text != "|" and not line.endswith("|"))),
            )
            + text
        )
    return line


def _joined(block: Sequence[_Column], cells: Sequence[str]) -> str:
    """Cells with a bar between groups."""
    out, group = "", None
    for column, cell in zip(block, cells, strict=True):
        out += ("│ " if column.group != group else " ") + cell + " "
        group = column.group
    return out
