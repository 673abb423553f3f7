"""Advantages that were whitened before they were given: found, and told apart from raw ones.

verl's `advantages` are whitened; ours are raw, and the whitened ones are a column of their own.
Pasted numbers would be whitened a second time, and R = A + V would fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from telescope.explain.arithmetic import columns_from, fill, moments
from telescope.explain.sample import Sample
from telescope.explain.typed import bound_of, half_unit_of
from telescope.explain.words import Lang, ui

NEAR = 0.02
"""How far the mean of whitened advantages may be from 0, and their σ from 1."""
FEWEST = 3
"""Tokens from which on this can be told: a straight line goes through any two points."""


def tell_apart(batch: Sequence[Sample]) -> list[Sample]:
    """The responses of a batch, all with advantages; whitened ones moved to their own column.

    They are whitened if the advantages that the other columns give are the same numbers up to a
    mean and a scale; or, where they cannot be compared or do not agree, if their mean is near 0
    and their σ near 1. Raw advantages are then those that the other columns give, if any.
    """
    given = [a for sample in batch for a in sample.numbers("advantages")]
    if len(given) < FEWEST or any("whitened" in sample.columns for sample in batch):
        return list(batch)
    raw = [_raw(sample) for sample in batch]
    line = None
    if all(row is not None for row in raw):
        expected = [a for row in raw for a in row or ()]
        if _agree(expected, given):
            return list(batch)
        line = _line(given, expected)
    if line is None and not _looks_whitened(given, batch[0]):
        return list(batch)
    return [_moved(sample, line) for sample in batch]


def note(sample: Sample, lang: Lang, *, brief: bool = False) -> str:
    """What to tell the reader; empty if the advantages were not whitened already."""
    if not sample.already_whitened:
        return ""
    if brief:
        return ui("already_whitened_brief", lang, "expert")
    raw = "raw_known" if "advantages" in fill(sample).columns else "raw_unknown"
    return ui("already_whitened", lang, "expert", ui(raw, lang, "expert"))


def _raw(sample: Sample) -> list[float] | None:
    """Raw advantages as they follow from the other columns, or None."""
    others = {name: column for name, column in sample.columns.items() if name != "advantages"}
    made = columns_from(sample, others).get("advantages")
    return None if made is None else [made[t] for t in sample.written]


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
