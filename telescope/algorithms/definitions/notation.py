"""How numbers and sums are written: .651, −.018, A₃, .95²·δ₅."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHOWN_TERMS = 6
"""A longer sum is printed as its first three terms, … (with what the left-out ones come to) and its last."""
DIGITS, MOST_DIGITS = 4, 16
ZERO = 1e-12
"""Less than this is what is left of 1 − 1."""


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
    names = ["…" if k is None else f"{weight_of(base, k)}{symbol}{subscript(at[k])}" for k in shown]
    return Series(" + ".join(names), added(terms, enough(terms)), math.fsum(terms), terms)


def added(terms: Sequence[float], digits: int) -> str:
    first, *rest = _shown(terms)
    parts = [f" {'−' if x < 0 else '+'} {num(abs(x), digits)}" for x in rest]
    if len(terms) > SHOWN_TERMS:
        parts[2] = f" + …({num(rest[2], digits)})"
    return num(first, digits) + "".join(parts)


def plus(x: float, y: float) -> str:
    digits = enough([x, y])
    return f"{num(x, digits)} + {par(y, digits)}"


def less(x: float, y: float) -> str:
    digits = enough([x, -y])
    return f"{num(x, digits)} − {par(y, digits)}"


def one_step(r: float, gamma: float, later: float, value: float) -> str:
    digits = exact(lambda r, gamma, later, value: r + gamma * later - value, r, gamma, later, value)
    return f"{num(r, digits)} + {num(gamma, digits)}·{par(later, digits)} − {par(value, digits)}"


def enough(terms: Sequence[float], *more: float) -> int:
    """With how many digits these numbers still add up to what they do, within a thousandth: four, but more in .99999987 − 1."""
    return exact(lambda *numbers: sum(numbers), *_shown(terms), *more)


def exact(formula: Callable[..., float], *numbers: float) -> int:
    """With how many digits these numbers, put into the formula, still give what they do, within a thousandth."""
    total = formula(*numbers)
    if not ZERO <= abs(total) < math.inf:
        return DIGITS
    good = (
        n
        for n in range(DIGITS, MOST_DIGITS)
        if abs(formula(*(float(_rounded(x, n)) for x in numbers)) - total) <= 1e-3 * abs(total)
    )
    return next(good, MOST_DIGITS)


def _shown(terms: Sequence[float]) -> Sequence[float]:
    return terms if len(terms) <= SHOWN_TERMS else [*terms[:3], math.fsum(terms[3:-1]), terms[-1]]


def weight_of(base: float, k: int) -> str:
    return "" if k == 0 or base == 1 else f"{num(base)}{superscript(k) if k > 1 else ''}·"


def num(x: float, digits: int = DIGITS) -> str:
    """Four significant digits, no leading zero: .651, −.018, 1.234, 3.2e−05."""
    if not math.isfinite(x):
        return str(x)
    text = _rounded(0.0 if abs(x) < ZERO else x, digits)
    if text.lstrip("-").startswith("0."):
        text = text.replace("0.", ".", 1)
    return "0" if text == "-0" else text.replace("-", "−")


def _rounded(x: float, digits: int) -> str:
    return f"{x:.0f}" if 10**digits <= abs(x) < 1e9 else f"{x:.{digits}g}"


def listed(numbers: Sequence[float]) -> str:
    """[.651, .58, .4]; of more than eight the first four and the last two."""
    shown = [num(x) for x in numbers]
    return "[" + ", ".join(shown if len(shown) <= 8 else [*shown[:4], "…", *shown[-2:]]) + "]"


def par(x: float, digits: int = DIGITS) -> str:
    return f"({num(x, digits)})" if x < 0 else num(x, digits)


def subscript(i: int) -> str:
    return str(i).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def superscript(i: int) -> str:
    return str(i).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
