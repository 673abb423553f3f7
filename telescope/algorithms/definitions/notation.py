"""How numbers and sums are written: 0.651, −0.018, A₃, 0.95²·δ₅."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHOWN_TERMS = 6
"""A longer sum is printed as its first three terms, …(the sum of those left out) and its last."""
DIGITS = 4
"""Significant digits of a printed number, unless the arithmetic needs more."""
MOST_DIGITS = 16
ZERO = 1e-12
"""A smaller number is the rounding error of 1 − 1; it is printed as 0."""
LISTED = 8
"""A longer list is printed as its first four numbers, … and its last two."""


@dataclass(frozen=True)
class Series:
    """A sum Σ_k base^k · x_k in full, and as text."""

    formula: str
    substituted: str
    total: float
    terms: list[float]


def series(symbol: str, at: Sequence[int], numbers: Sequence[float], base: float) -> Series:
    """Σ_k base^k · numbers[k]; the k-th number is called `symbol` with the index at[k].

    With base 0 only the first term is left.
    """
    if not base:
        at = at[:1]
        numbers = numbers[:1]
    terms: list[float] = []
    weight = 1.0
    for x in numbers:
        terms.append(weight * x)
        weight *= base
    shown: list[int | None] = list(range(len(at)))
    if len(at) > SHOWN_TERMS:
        shown = [0, 1, 2, None, len(at) - 1]
    names = []
    for k in shown:
        names.append("…" if k is None else f"{weight_of(base, k)}{symbol}{subscript(at[k])}")
    formula = " + ".join(names)
    substituted = added(terms, enough(terms))
    return Series(formula, substituted, math.fsum(terms), terms)


def added(terms: Sequence[float], digits: int) -> str:
    """A sum of numbers: 0.651 − 0.018 + 0.4."""
    first, *rest = _shown(terms)
    parts = []
    for x in rest:
        sign = "−" if x < 0 else "+"
        parts.append(f" {sign} {num(abs(x), digits)}")
    if len(terms) > SHOWN_TERMS:
        parts[2] = f" + …({num(rest[2], digits)})"
    return num(first, digits) + "".join(parts)


def plus(x: float, y: float) -> str:
    """x + y with numbers: 0.651 + (−0.018)."""
    digits = enough([x, y])
    return f"{num(x, digits)} + {par(y, digits)}"


def less(x: float, y: float) -> str:
    """x − y with numbers: 0.651 − (−0.018)."""
    digits = enough([x, -y])
    return f"{num(x, digits)} − {par(y, digits)}"


def one_step(r: float, gamma: float, later: float, value: float) -> str:
    """δ = r + γ·V[i⁺] − V[i] with numbers: 0 + 0.99·0.7 − 0.651."""

    def delta(r: float, gamma: float, later: float, value: float) -> float:
        return r + gamma * later - value

    digits = exact(delta, r, gamma, later, value)
    return f"{num(r, digits)} + {num(gamma, digits)}·{par(later, digits)} − {par(value, digits)}"


def enough(terms: Sequence[float], *more: float) -> int:
    """How many digits the numbers need so that their printed sum is right within a thousandth.

    Four are enough for most sums, but not for 0.99999987 − 1.
    """
    return exact(lambda *numbers: sum(numbers), *_shown(terms), *more)


def exact(formula: Callable[..., float], *numbers: float) -> int:
    """How many digits the numbers need so that the formula of them is right within a thousandth."""
    total = formula(*numbers)
    if not ZERO <= abs(total) < math.inf:
        return DIGITS
    for digits in range(DIGITS, MOST_DIGITS):
        printed = [float(_rounded(x, digits)) for x in numbers]
        if abs(formula(*printed) - total) <= 1e-3 * abs(total):
            return digits
    return MOST_DIGITS


def _shown(terms: Sequence[float]) -> Sequence[float]:
    """The terms that are printed; those left out of a long sum are added up to one."""
    if len(terms) <= SHOWN_TERMS:
        return terms
    return [*terms[:3], math.fsum(terms[3:-1]), terms[-1]]


def weight_of(base: float, k: int) -> str:
    """base^k as a factor: 0.95²·; nothing if it is 1."""
    if k == 0 or base == 1:
        return ""
    power = superscript(k) if k > 1 else ""
    return f"{num(base)}{power}·"


def num(x: float, digits: int = DIGITS) -> str:
    """Four significant digits: 0.651, −0.018, 1.234, 3.2e−05."""
    if not math.isfinite(x):
        return str(x)
    text = _rounded(0.0 if abs(x) < ZERO else x, digits)
    return "0" if text == "-0" else text.replace("-", "−")


def _rounded(x: float, digits: int) -> str:
    return f"{x:.0f}" if 10**digits <= abs(x) < 1e9 else f"{x:.{digits}g}"


def listed(numbers: Sequence[float]) -> str:
    """[0.651, 0.58, 0.4]; a long list is shortened."""
    shown = [num(x) for x in numbers]
    if len(shown) > LISTED:
        shown = [*shown[:4], "…", *shown[-2:]]
    return "[" + ", ".join(shown) + "]"


def par(x: float, digits: int = DIGITS) -> str:
    """A number, in parentheses if it is negative."""
    return f"({num(x, digits)})" if x < 0 else num(x, digits)


def subscript(i: int) -> str:
    return str(i).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def superscript(i: int) -> str:
    return str(i).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
