"""What each stage of a step put into the batch, and how the stages feed each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.box import SQUARE
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from telescope.algorithms.definitions.notation import num
from telescope.batch import COLUMNS
from telescope.explain.arithmetic import fill
from telescope.explain.chat import user_turn
from telescope.explain.drawing import Row
from telescope.explain.flow_story import FlowStory
from telescope.explain.groups import Group, group_of
from telescope.explain.instructive import instructive
from telescope.explain.sample import SAMPLE_COLUMNS, Sample
from telescope.explain.text import pad, pieces, shorten, visible, wrap
from telescope.explain.trace import Tracer
from telescope.explain.words import Lang, Level, texts

_OF_CRITIC = ("values", "deltas", "returns")
"""Columns that mean nothing without a critic."""
CREDIT_STAGE = "compute_advantages(batch)"
_LAYERS = (
    ("actor.generate_sequences(prompts)",),
    (
        "critic.compute_values(batch)",
        "reference.compute_log_prob(batch)",
        "reward.compute_reward(batch)",
    ),
    (CREDIT_STAGE,),
    ("actor.update_actor(batch)", "critic.update_critic(batch)"),
)
"""A stage reads what the layers above it made."""
BESIDE = 78
"""Cells from which the stages of a layer stand beside each other."""
NARROWEST = 34
WIDEST = 100


@dataclass(frozen=True)
class Output:
    """One column that a stage added."""

    maker: str
    """The call that made it; `given`: none, it was typed."""
    name: str
    shape: list[int]
    values: list[Any]
    tokens: list[str]
    """The tokens that the numbers belong to; empty: they belong to the row."""


# ---- stage by stage ----


def modules(outputs: Sequence[Output], lang: Lang, width: int) -> str:
    """The tokens of each stage, and under each its ids and numbers."""
    front = 2 + max(len(output.name) for output in outputs)
    lines: list[str] = []
    for maker, made in itertools.groupby(outputs, key=lambda output: output.maker):
        lines += wrap(_title(maker, lang), width)
        of_tokens_first = sorted(made, key=lambda output: not output.tokens)
        alike = itertools.groupby(
            of_tokens_first,
            key=lambda output: (output.shape, output.tokens),
        )
        for _, columns in alike:
            lines += _columns(list(columns), front, width)
    return "\n".join([*lines, ""])


def _title(maker: str, lang: Lang) -> str:
    """The call, and what it does."""
    said = texts()["flow"].get(maker, {}).get(lang, "")
    return str(said) if maker == "given" else f"{maker}  {said}"


def _columns(outputs: Sequence[Output], front: int, width: int) -> list[str]:
    """Columns of one shape: under their tokens, or on a line where they have none."""
    shape = str(outputs[0].shape)
    tokens = outputs[0].tokens
    rows = [(output.name, [_short(value) for value in output.values]) for output in outputs]
    if tokens:
        heads = [shorten(token, 12) for token in tokens]
        return _table([(shape, heads), *rows], front, width)
    said = [f"{name} {shape} {' '.join(cells)}" for name, cells in rows]
    return wrap("  " + "   ".join(said), width, "  ")


def _table(rows: Sequence[Row], front: int, width: int) -> list[str]:
    """Cells under each other, as many tokens side by side as fit; the others below."""
    columns = zip(*(cells for _, cells in rows), strict=True)
    widths = [2 + max(map(cell_len, column)) for column in columns]
    lines: list[str] = []
    for first, last in _chunks(widths, width - front):
        for name, cells in rows:
            line = pad(f"  {name}", front)
            for k in range(first, last):
                line += pad(cells[k], widths[k], ">")
            lines.append(line)
    return lines


def _chunks(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """first, last (exclusive) of as many columns as fit, at least one."""
    first = 0
    used = 0
    for k, width in enumerate(widths):
        if k > first and used + width > room:
            yield first, k
            first = k
            used = 0
        used += width
    if widths:
        yield first, len(widths)


def _short(value: Any) -> str:
    return f"{value:.3f}".replace("-0.000", "0.000") if isinstance(value, float) else str(value)


# ---- boxes and arrows ----


def flow(
    sample: Sample,
    lang: Lang,
    width: int,
    token: int | None = None,
    *,
    level: Level = "expert",
    given: bool = False,
    batch: Sequence[Sample] = (),
) -> str:
    """The step as boxes and arrows.

    Each box is a stage with the columns it made, their shapes, and one token's number of each; for
    a child, somebody of the story. `batch`: the responses that an estimator without a critic
    compares the sample with.
    """
    full = fill(sample)
    t = instructive(full) if token is None else token
    made = _numbers_of(full, t)
    group = group_of(batch, sample)
    told: FlowStory | _FlowNumbers
    if level == "kid":
        told = FlowStory(full, t, lang, given, group)
    else:
        told = _FlowNumbers(sample, t, lang, given, group, made)
    stand_beside = width >= BESIDE
    width = min(max(width, NARROWEST), WIDEST)
    width -= width % 2
    lines = wrap(told.head(width), width)
    above: list[int] = []
    for layer in _LAYERS:
        makers = [maker for maker in layer if made[maker]]
        if not makers:
            continue
        across = len(makers) if stand_beside else 1
        room = width // across
        left = (width - room * across) // 2
        below = [left + room * k + (room - 1) // 2 for k in range(across)]
        if above:
            lines += _arrows(above, below)
        above = below
        boxes = [told.stage(maker, room - 5) for maker in makers]
        for first in range(0, len(boxes), across):
            row = boxes[first : first + across]
            lines += [" " * left + line for line in _side_by_side(row, room - 1)]
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class _FlowNumbers:
    """The words of the boxes for an expert: calls, columns and their numbers."""

    sample: Sample
    t: int
    lang: Lang
    given: bool
    group: Group | None
    made: dict[str, dict[str, str]]

    def head(self, width: int) -> str:
        prompt = visible(user_turn(self.sample.prompt), spaces=False)
        token = pieces(self.sample.token_bytes)[self.t]
        return f"{shorten(prompt, width // 2)}   i = {self.t} «{shorten(token, 12)}»"

    def stage(self, maker: str, width: int) -> tuple[str, list[str]]:
        """The title of a stage's box, and its lines."""
        is_typed = self.given and maker in _LAYERS[0]
        is_without_critic = maker == CREDIT_STAGE and not self.sample.settings.has_critic
        role, _, call = maker.split("(")[0].rpartition(".")
        if is_typed:
            call = "compute_log_prob"
        lines = [call] if role else []
        key = "given" if is_typed else "without_critic" if is_without_critic else maker
        lines += wrap(texts()["flow"][key][self.lang], width)
        for name, number in self.made[maker].items():
            shown = f"{number}   [1, {len(self.sample)}]"
            one = f"{name}[i] = {shown}"
            lines += [one] if cell_len(one) <= width else [f"{name}[i]", f"  = {shown}"]
        if is_without_critic:
            lines += self._comparison(width)
        return role or call, lines

    def _comparison(self, width: int) -> list[str]:
        """How A is made without a critic: the formula, and the group with its numbers."""
        lines = wrap(self.sample.settings.estimator_definition.formula, width, "  ")
        group = self.group
        if group is None:
            return lines
        outcomes = " ".join(num(o) for o in group.outcomes)
        said = texts()["flow"]["group"][self.lang].format(len(group.members), outcomes)
        lines += wrap(said, width, "  ")
        for trace in [*group.traces(self.t), *Tracer(self.sample).traces(self.t)]:
            if trace.name in ("baseline", "scale", "advantage"):
                text = f"{trace.formula} = {trace.substituted} = {num(trace.result)}"
                lines += wrap(text, width, "  ")
        return lines


def _side_by_side(boxes: Sequence[tuple[str, list[str]]], width: int) -> list[str]:
    """Boxes of the same height."""
    tallest = max(len(lines) for _, lines in boxes)
    drawn = [_box(title, lines, width, tallest) for title, lines in boxes]
    return [" ".join(parts) for parts in zip(*drawn, strict=True)]


def _numbers_of(full: Sample, t: int) -> dict[str, dict[str, str]]:
    """Stage -> column -> token t's number."""
    made: dict[str, dict[str, str]] = {maker: {} for layer in _LAYERS for maker in layer}
    made[_LAYERS[0][0]]["responses"] = str(full.token_ids[t])
    has_critic = full.settings.has_critic
    for name in SAMPLE_COLUMNS:
        if name in full.columns and (has_critic or name not in _OF_CRITIC):
            made[COLUMNS[name].maker][name] = num(full.columns[name][t])
    if full.actor_updates:
        actor = full.actor_updates[-1]
        terms = {"ratio": actor.ratio, "policy_loss": actor.loss}
        made["actor.update_actor(batch)"] |= _numbers_at(terms, t)
    if full.critic_updates and has_critic:
        critic = full.critic_updates[-1]
        terms = {"vpreds": critic.values, "value_loss": critic.loss}
        made["critic.update_critic(batch)"] |= _numbers_at(terms, t)
    return made


def _numbers_at(columns: dict[str, list[float]], t: int) -> dict[str, str]:
    return {name: num(column[t]) for name, column in columns.items() if column}


def _box(title: str, inside: list[str], width: int, tallest: int) -> list[str]:
    """A box with room for `tallest` lines."""
    panel = Panel(
        Text("\n".join(inside)),
        SQUARE,
        title=title,
        title_align="left",
        width=width,
        height=tallest + 2,
    )
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(panel)
    return capture.get().splitlines()


_CORNERS = {
    (True, False): ("└", "┴", "┘"),
    (False, True): ("┌", "┬", "┐"),
    (True, True): ("├", "┼", "┤"),
    (False, False): ("─", "─", "─"),
}
"""(comes from above, goes below) -> the bus there: at its start, in between, at its end."""


def _arrows(above: Sequence[int], below: Sequence[int]) -> list[str]:
    """A line from each middle above to a bus, and arrows from it to each middle below."""
    first = min(*above, *below)
    last = max(*above, *below)
    if first == last:
        return [" " * first + "▼"]
    bus = " " * first
    tips = " " * first
    for x in range(first, last + 1):
        start, between, end = _CORNERS[x in above, x in below]
        bus += start if x == first else end if x == last else between
        tips += "▼" if x in below else " "
    return [bus, tips]
