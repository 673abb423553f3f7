"""What each stage of a step put into the batch: every column with its numbers, and how the stages feed each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from telescope.algorithms.definitions.notation import num
from telescope.batch import COLUMNS
from telescope.explain.sample import SAMPLE_COLUMNS, Sample
from telescope.explain.text import pad, pieces, shorten, visible, wrap
from telescope.explain.trace import fill
from telescope.explain.words import Lang

_SAID = {
    "given": (
        "回答是给定的：只分词，没有采样",
        "the response was given: split into tokens, nothing sampled",
    ),
    "actor.generate_sequences(prompts)": ("actor 写回答", "the actor writes"),
    "actor.compute_log_prob(batch)": (
        "actor 写每个 token 的对数概率",
        "how likely each token was to the actor (log)",
    ),
    "critic.compute_values(batch)": (
        "critic 预期还能得多少",
        "what the critic expects from here on",
    ),
    "reference.compute_log_prob(batch)": (
        "参考模型的对数概率",
        "how likely to the frozen reference (log)",
    ),
    "reward.compute_reward(batch)": ("任务打分", "the task's score"),
    "compute_advantages(batch)": ("奖励、优势、目标", "rewards, advantages, targets"),
    "actor.update_actor(batch)": ("按优势改变概率", "moves its probabilities by the advantages"),
    "critic.update_critic(batch)": (
        "预测 v 向目标 R 靠近",
        "moves its predictions v to the targets R",
    ),
}
_LAYERS = (
    ("actor.generate_sequences(prompts)",),
    (
        "critic.compute_values(batch)",
        "reference.compute_log_prob(batch)",
        "reward.compute_reward(batch)",
    ),
    ("compute_advantages(batch)",),
    ("actor.update_actor(batch)", "critic.update_critic(batch)"),
)
"""Who works on whose output: a stage reads what the layers above it made."""
BESIDE, NARROWEST = 78, 34
"""Cells from which the stages of a layer stand beside each other, below that one under the other; and what a box needs."""


@dataclass(frozen=True)
class Output:
    """One column that a stage added."""

    maker: str
    """The call that made it; `given`: none, it was typed."""
    name: str
    shape: list[int]
    values: list[Any]
    tokens: list[str]
    """Whose numbers they are; none: the row's."""


def modules(outputs: Sequence[Output], lang: Lang, width: int) -> str:
    """Stage by stage: the tokens, and under each its ids and numbers."""
    lines: list[str] = []
    for maker, made in itertools.groupby(outputs, key=lambda output: output.maker):
        said = _SAID.get(maker, ("", ""))[lang == "en"]
        lines += wrap(said if maker == "given" else f"{maker}  {said}", width)
        by_token = sorted(made, key=lambda output: not output.tokens)  # the row's own numbers last
        for (shape, tokens), columns in itertools.groupby(
            by_token, key=lambda output: (output.shape, output.tokens)
        ):
            rows = [(output.name, [_short(v) for v in output.values]) for output in columns]
            if tokens:
                rows.insert(0, (str(shape), [shorten(token, 12) for token in tokens]))
                lines += _table(rows, 2 + max(len(output.name) for output in outputs), width)
            else:
                lines += wrap(
                    "  " + "   ".join(f"{name} {shape} {' '.join(cells)}" for name, cells in rows),
                    width,
                    "  ",
                )
    return "\n".join([*lines, ""])


def _table(rows: Sequence[tuple[str, list[str]]], front: int, width: int) -> list[str]:
    """Cells under each other, as many tokens side by side as fit; the others below."""
    widths = [
        2 + max(map(cell_len, cells)) for cells in zip(*(cells for _, cells in rows), strict=True)
    ]
    lines, first = [], 0
    while first < len(widths):
        last = first + 1
        while last < len(widths) and front + sum(widths[first : last + 1]) <= width:
            last += 1
        for name, cells in rows:
            shown = zip(cells[first:last], widths[first:last], strict=True)
            lines.append(pad(f"  {name}", front) + "".join(pad(cell, w, ">") for cell, w in shown))
        first = last
    return lines


def _short(value: Any) -> str:
    return f"{value:.3f}".replace("-0.000", "0.000") if isinstance(value, float) else str(value)


def flow(
    sample: Sample, lang: Lang, width: int, token: int | None = None, *, given: bool = False
) -> str:
    """The step as boxes and arrows: each stage with the columns it made, their shapes, and one token's number of each."""
    full, texts = fill(sample), pieces(sample.token_bytes)
    sizes = full.columns.get("advantages") or [0.0] * len(sample)
    t = max(range(len(sample)), key=lambda t: abs(sizes[t])) if token is None else token
    made: dict[str, dict[str, str]] = {maker: {} for layer in _LAYERS for maker in layer}
    made[_LAYERS[0][0]]["responses"] = str(sample.token_ids[t])
    for name in SAMPLE_COLUMNS:
        if name in full.columns:
            made[COLUMNS[name].maker][name] = num(full.columns[name][t])
    for maker, updates, own in (
        ("actor", full.actor_updates, "ratio"),
        ("critic", full.critic_updates, "values"),
    ):
        terms = {name: getattr(updates[-1], name) for name in (own, "loss")} if updates else {}
        made[f"{maker}.update_{maker}(batch)"] |= {
            name: num(column[t]) for name, column in terms.items() if column
        }
    beside, width, above = width >= BESIDE, min(max(width, NARROWEST), 100) // 2 * 2, list[int]()
    lines = wrap(
        f"{shorten(visible(sample.prompt, spaces=False), width // 2)}   t = {t} «{shorten(texts[t], 12)}»",
        width,
    )
    for layer in _LAYERS:
        present = [maker for maker in layer if made[maker]]
        if not present:
            continue
        across = len(present) if beside else 1
        room = width // across
        left = (width - room * across) // 2
        boxes = [
            _box(
                maker,
                _SAID["given" if given and layer is _LAYERS[0] else maker],
                made[maker],
                len(sample),
                room - 1,
                lang,
            )
            for maker in present
        ]
        below = [left + room * k + (room - 1) // 2 for k in range(across)]
        lines += _arrows(above, below) if above else []
        for row in (boxes[k : k + across] for k in range(0, len(boxes), across)):
            tallest = max(map(len, row))
            even = [
                [*box[:-1], *["│" + " " * (room - 3) + "│"] * (tallest - len(box)), box[-1]]
                for box in row
            ]
            lines += [" " * left + " ".join(parts) for parts in zip(*even, strict=True)]
        above = below
    return "\n".join(line.rstrip() for line in lines)


def _box(
    maker: str, said: tuple[str, str], numbers: dict[str, str], length: int, width: int, lang: Lang
) -> list[str]:
    role, _, call = maker.split("(")[0].rpartition(".")
    if said is _SAID["given"]:
        call = "compute_log_prob"
    inside = ([call] if role else []) + wrap(said[lang == "en"], width - 4)
    for name, number in numbers.items():
        one = f"{name}[t] = {number}   [1, {length}]"
        inside += (
            [one] if cell_len(one) <= width - 4 else [f"{name}[t]", f"  = {number}   [1, {length}]"]
        )
    head = f"┌ {role or call} "
    return [
        head + "─" * (width - 1 - len(head)) + "┐",
        *(f"│ {pad(line, width - 4)} │" for line in inside),
        f"└{'─' * (width - 2)}┘",
    ]


def _arrows(above: Sequence[int], below: Sequence[int]) -> list[str]:
    """A line from each middle above to a bus, and arrows from it to each middle below."""
    first, last = min(*above, *below), max(*above, *below)
    corners = {(1, 0): "┴└┘", (0, 1): "┬┌┐", (1, 1): "┼├┤", (0, 0): "───"}
    if first == last:
        return [" " * first + "▼"]
    bus = [
        corners[x in above, x in below][1 if x == first else 2 if x == last else 0]
        for x in range(first, last + 1)
    ]
    return [
        " " * first + "".join(bus),
        "".join("▼" if x in below else " " for x in range(last + 1)),
    ]
