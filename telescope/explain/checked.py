"""A number computed again, beside the record: do they agree?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from telescope.algorithms.definitions.base import Term, Words
from telescope.explain.typed import bound_of, bound_of_sum, half_unit_of

TOLERANCE = 1e-5
"""Largest difference between a result and the record, relative to the inputs if those exceed 1."""


@dataclass(frozen=True)
class Trace:
    """One line of an explanation, compared with the record."""

    name: str
    formula: str
    substituted: str
    result: float
    recorded: float | None = None
    ok: bool | None = None
    """Whether the record agrees, see `compared`. None: nothing was recorded."""
    rounded: bool = False
    """The record agrees, but differs by more than 1e-5: it was typed with fewer digits."""
    state: str | None = None
    """What happened to this token: e.g. inside, kept, clipped, dual, off, last, rejected, alone."""
    variant: str | None = None
    """Which form of the formula this is."""
    texts: Mapping[str, Words] = field(default_factory=dict, compare=False, repr=False)
    """Words of the estimator or loss that the line belongs to."""

    def to_json(self) -> dict[str, Any]:
        """JSON has no NaN or infinity: they become their names."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        del plain["texts"]
        for name, value in plain.items():
            if isinstance(value, float) and not math.isfinite(value):
                plain[name] = str(value)
        return plain


def compared(
    term: Term, recorded: float | None, words: Mapping[str, Words], slack: float = 0.0
) -> Trace:
    """A term compared with the record.

    They agree if they differ by less than 1e-5, relative to the largest number that went in if
    that exceeds 1. A typed number also agrees if rounding explains the difference: that of its own
    last digit, of the numbers that went in, and `slack`.
    """
    trace = Trace(
        name=term.name,
        formula=term.formula,
        substituted=term.substituted,
        result=term.result,
        state=term.state,
        variant=term.variant,
        texts=words,
    )
    return trace if recorded is None else recheck(trace, recorded, term.inputs, slack)


def recheck(
    trace: Trace, recorded: float, inputs: Sequence[float] = (), slack: float = 0.0
) -> Trace:
    """The trace compared with this record, see `compared`."""
    x = trace.result
    from_inputs = max(bound_of(x, recorded), bound_of_sum(inputs, recorded)) + slack
    allowed = half_unit_of(recorded) + from_inputs
    ok = close(x, recorded, inputs)
    rounded = not ok and abs(x - recorded) <= allowed * (1 + 1e-9)
    return replace(trace, recorded=recorded, ok=ok or rounded, rounded=rounded)


def agree(trace: Trace, flag: str | None, flags: Sequence[str], ties: bool) -> Trace:
    """Compares the recorded clip flag with ours; if the branches tie, the recorded one counts."""
    if trace.state == flag or (flag is None and trace.state not in flags):
        return trace
    if ties:
        return replace(trace, state=flag or "inside")
    return replace(trace, ok=False)


def close(x: float, y: float, inputs: Iterable[float]) -> bool:
    """Whether x and y agree, relative to the largest number that went in if that exceeds 1.

    float32 keeps about 1e-7 of that number.
    """
    largest = max(1.0, abs(x), *(abs(number) for number in inputs))
    return abs(x - y) < TOLERANCE * largest
