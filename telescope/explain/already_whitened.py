"""Advantages that were whitened before they were given: found, and told apart from raw ones.

verl's `advantages` are whitened; ours are raw, and the whitened ones are a column of their own.
Pasted numbers would be whitened a second time, and R = A + V would fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from telescope.algorithms.definitions.base import Lang
from telescope.explain.arithmetic import fill, moments
from telescope.explain.sample import Sample
from telescope.explain.typed import bound_of, half_unit_of

NOTE = {
    "zh": (
        "给出的 advantages 已经白化过（均值约 0、标准差约 1，或与 R − V 只差平移和缩放），"
        "所以当作 Â，不再白化。{raw}要自己说明：把这一行叫作 whitened，或写 whiten = false。"
    ),
    "en": (
        "The given advantages are already whitened (mean near 0 and σ near 1, or R − V shifted and "
        "scaled), so they are taken as Â and not whitened again. {raw}To say it yourself, name "
        "the row `whitened`, or set `whiten = false`."
    ),
}
BRIEF = {
    "zh": (
        "给出的 advantages 已经白化过：当作 Â，不再白化。"
        "要自己说明，把这一行叫作 whitened，或写 whiten = false。"
    ),
    "en": (
        "The given advantages are already whitened: taken as Â, not whitened again. To say it "
        "yourself, name the row `whitened`, or set `whiten = false`."
    ),
}
"""For the first screen."""
RAW = {
    True: {
        "zh": "未白化的 A 由其他列得出。",
        "en": "The raw A come from the other columns. ",
    },
    False: {
        "zh": "未白化的 A 没有给出，也推不出来。",
        "en": "The raw A were not given and do not follow from the other numbers. ",
    },
}
NEAR = 0.02
"""How far the mean of whitened advantages may be from 0, and their σ from 1."""
FEWEST = 3
"""Tokens from which on this can be told: a straight line goes through any two points."""


def tell_apart(batch: Sequence[Sample]) -> list[Sample]:
    """The responses of a batch, with already whitened advantages moved to their own column.

    They are whitened if the advantages that the other columns give are the same numbers up to a
    mean and a scale; or, where they cannot be compared or do not agree, if their mean is near 0
    and their σ near 1. Raw advantages are then those that the other columns give, if any.
    """
    given = [sample.columns.get("advantages") for sample in batch]
    stated = any("whitened" in sample.columns for sample in batch)
    if stated or not all(given):
        return list(batch)
    raw = [_raw(sample) for sample in batch]
    advantages = [sample.numbers("advantages") for sample in batch]
    every = [a for row in advantages for a in row]
    if len(every) < FEWEST:
        return list(batch)
    expected = None
    if all(row is not None for row in raw):
        expected = [a for row in raw for a in row or ()]
    line = None
    if expected is not None:
        if _agree(expected, every):
            return list(batch)
        line = _line(every, expected)
    if line is None and not _looks_whitened(every, batch[0]):
        return list(batch)
    return [_moved(sample, line) for sample in batch]


def note(sample: Sample, lang: Lang, *, brief: bool = False) -> str:
    """What to tell the reader; empty if the advantages were not whitened already."""
    if not sample.already_whitened:
        return ""
    if brief:
        return BRIEF[lang]
    knows_raw = "advantages" in fill(sample).columns
    return NOTE[lang].format(raw=RAW[knows_raw][lang])


def _raw(sample: Sample) -> list[float] | None:
    """Raw advantages as they follow from the other columns, or None."""
    columns = {name: column for name, column in sample.columns.items() if name != "advantages"}
    bare = fill(replace(sample, columns=columns, actor_updates=[], critic_updates=[]))
    if "advantages" not in bare.columns:
        return None
    return bare.numbers("advantages")


def _agree(expected: Sequence[float], given: Sequence[float]) -> bool:
    """Whether most numbers are those expected, up to rounding; one may be wrong."""
    right = sum(abs(x - y) <= _rounding(x, y) for x, y in zip(expected, given, strict=True))
    return 2 * right >= len(given)


def _rounding(x: float, y: float) -> float:
    return 1e-5 * max(1.0, abs(x)) + bound_of(x, y) + half_unit_of(y)


def _line(whitened: Sequence[float], raw: Sequence[float]) -> tuple[float, float] | None:
    """μ and σ > 0 with raw = μ + σ·whitened for every token, or None if there are none.

    Close to the μ and σ of these tokens, they are exactly those: the whole batch is here.
    """
    middle, spread = moments(whitened)
    mean, std = moments(raw)
    if spread < 1e-3 or std < 1e-6:
        return None
    products = math.fsum((x - middle) * (y - mean) for x, y in zip(whitened, raw, strict=True))
    squares = math.fsum((x - middle) * (x - middle) for x in whitened)
    slope = products / squares
    start = mean - slope * middle
    if slope <= 0:
        return None
    for x, y in zip(whitened, raw, strict=True):
        of_inputs = 1e-5 * max(1.0, abs(y)) + bound_of(y, x)
        allowed = of_inputs + slope * half_unit_of(x) + 1e-3 * std
        if abs(start + slope * x - y) > allowed:
            return None
    is_whole_batch = abs(start - mean) <= 0.01 * std and abs(slope - std) <= 0.01 * std
    return (mean, std) if is_whole_batch else (start, slope)


def _looks_whitened(given: Sequence[float], sample: Sample) -> bool:
    mean, std = moments(given)
    whitens = sample.settings.whiten and sample.whiten_mean is None
    return whitens and abs(mean) <= NEAR and abs(std - 1) <= NEAR


def _moved(sample: Sample, line: tuple[float, float] | None) -> Sample:
    """The sample with its advantages called whitened, and raw ones if those are known.

    A reader who set `whiten = false` knows that, and is not told.
    """
    columns = dict(sample.columns)
    columns["whitened"] = columns.pop("advantages")
    mean = sample.whiten_mean
    std = sample.whiten_std
    if line is not None and mean is None:
        mean, std = line
    return replace(
        sample,
        columns=columns,
        settings=sample.settings.change(whiten=True),
        whiten_mean=mean,
        whiten_std=std,
        already_whitened=sample.settings.whiten,
    )
