"""Numbers typed by hand: how far each may be from the number that was meant.

0.6211 stands for anything that rounds to it, so it may be off by half a unit of its last digit.
What is computed from such numbers may be off too. A typed number therefore carries its own error
through sums, products and quotients: in δ = r + γ·V' − V the errors of r, V' and V add up, and in
A + V the error of V cancels the one that A has from it.

Exact are numbers typed without a point (0, 1), whole scores and rewards (1.0), and numbers with
fewer decimals than the one they are compared with: who types an A of 0.6211 for a V of 0.2 means
exactly 0.2.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

_serial_numbers = itertools.count()


class Source(NamedTuple):
    """A typed number that may be rounded."""

    serial_number: int
    half_unit: float


class Typed(float):
    """A float that remembers the precision it was typed with, or was computed with."""

    __slots__ = ("errors", "half_unit")
    errors: Mapping[Source, float]
    """Largest error by source, signed: equal sources add or cancel."""
    half_unit: float
    """Half a unit of the last typed digit; 0 for a computed number and for whole numbers."""

    def __new__(
        cls, value: float, errors: Mapping[Source, float] | None = None, half_unit: float = 0.0
    ) -> Typed:
        made = super().__new__(cls, value)
        made.errors = errors or {}
        made.half_unit = half_unit
        return made

    def __add__(self, other: float) -> Typed:
        return Typed(float(self) + float(other), _errors((self, 1.0), (other, 1.0)))

    def __sub__(self, other: float) -> Typed:
        return Typed(float(self) - float(other), _errors((self, 1.0), (other, -1.0)))

    def __rsub__(self, other: float) -> Typed:
        return -(self - other)

    def __neg__(self) -> Typed:
        return self * -1.0

    def __mul__(self, other: float) -> Typed:
        errors = _errors((self, float(other)), (other, float(self)))
        return Typed(float(self) * float(other), errors)

    def __truediv__(self, other: float) -> Typed:
        return self * (1.0 / float(other))

    __radd__ = __add__
    __rmul__ = __mul__


def typed(text: str) -> Typed:
    """The number that a text states, with the precision of its digits."""
    try:
        exact = Decimal(text)
    except ArithmeticError:  # an exponent of a dozen digits
        return Typed(float(text))
    exponent = exact.as_tuple().exponent
    if not isinstance(exponent, int) or exponent >= 0:
        return Typed(float(exact))
    return Typed(float(exact), half_unit=0.5 * 10.0**exponent)


def with_common_precision(column: Sequence[float], *, whole_are_exact: bool = False) -> list[float]:
    """The numbers of a list, each with its own precision or the list's usual one if that is finer.

    A program that prints 0.5200 as 0.52 rounds it no more than its neighbours. Without a point a
    number is exact; with `whole_are_exact`, 1.0 is exact too.
    """
    half_units = [x.half_unit for x in column if isinstance(x, Typed) and x.half_unit]
    if not half_units:
        return [float(x) for x in column]
    usual = statistics.median_low(half_units)
    numbers: list[float] = []
    for x in column:
        half_unit = min(half_unit_of(x) or usual, usual)
        is_exact = float(x).is_integer() and (whole_are_exact or not half_unit_of(x))
        source = Source(next(_serial_numbers), half_unit)
        errors = {} if is_exact else {source: half_unit}
        numbers.append(Typed(float(x), errors, half_unit))
    return numbers


def half_unit_of(number: float | None) -> float:
    """Half a unit of the number's last typed digit; 0 if it was not typed."""
    return number.half_unit if isinstance(number, Typed) else 0.0


def bound_of(number: float | None, recorded: float = 0.0) -> float:
    """The largest error of a number that was typed, or computed from typed ones.

    Errors of inputs with fewer decimals than `recorded` do not count: those are exact.
    """
    return bound_of_sum([number], recorded)


def bound_of_sum(numbers: Iterable[float | None], recorded: float = 0.0) -> float:
    """The largest error of a sum, see `bound_of`."""
    coarsest = half_unit_of(recorded) or math.inf
    errors = _errors(*((number, 1.0) for number in numbers))
    counted = [error for source, error in errors.items() if source.half_unit <= coarsest]
    return sum(map(abs, counted))


def _errors(*terms: tuple[float | None, float]) -> dict[Source, float]:
    """The errors of a sum of numbers, each times a weight."""
    errors: dict[Source, float] = {}
    for number, weight in terms:
        if isinstance(number, Typed):
            for source, error in number.errors.items():
                errors[source] = errors.get(source, 0.0) + error * weight
    return errors
