"""How numbers and sums are written: .651, −.018, A₃, .95²·δ₅."""

from __future__ import annotations

import math
from collections.abc import Sequence

SHOWN_TERMS = 6


def series(symbol: str, at: Sequence[int], column: Sequence[float], base: float) -> tuple[str, str, float, list[float]]:
    """Σ_k base^k · column[at[k]] in full, and as text: (formula, substituted, total, the terms)."""
    terms, weight = [], 1.0
    for t in at:
        terms.append(weight * column[t])
        weight *= base
    total, shown = math.fsum(terms), len(terms) if base else 1

    def name(k: int) -> str:
        return f"{weight_of(base, k)}{symbol}{subscript(at[k])}"

    if shown <= SHOWN_TERMS:
        return " + ".join(map(name, range(shown))), added(terms[:shown]), total, terms
    left_out = f"…({num(math.fsum(terms[3:-1]))})"
    sub = f"{added(terms[:3])} + {left_out} {'−' if terms[-1] < 0 else '+'} {num(abs(terms[-1]))}"
    return " + ".join([*map(name, range(3)), "…", name(len(terms) - 1)]), sub, total, terms


def added(terms: Sequence[float]) -> str:
    return num(terms[0]) + "".join(f" {'−' if x < 0 else '+'} {num(abs(x))}" for x in terms[1:])


def weight_of(base: float, k: int) -> str:
    return "" if k == 0 or base == 1 else f"{num(base)}{superscript(k) if k > 1 else ''}·"


def num(x: float) -> str:
    """Four significant digits, no leading zero: .651, −.018, 1.234, 3.2e−05."""
    if not math.isfinite(x):
        return str(x)
    x = 0.0 if abs(x) < 1e-12 else x  # what is left of 1 − 1
    text = f"{x:.0f}" if 1e4 <= abs(x) < 1e9 else f"{x:.4g}"
    if text.lstrip("-").startswith("0."):
        text = text.replace("0.", ".", 1)
    return "0" if text == "-0" else text.replace("-", "−")


def listed(numbers: Sequence[float]) -> str:
    """[.651, .58, .4]; of more than eight the first four and the last two."""
    shown = [num(x) for x in numbers]
    return "[" + ", ".join(shown if len(shown) <= 8 else [*shown[:4], "…", *shown[-2:]]) + "]"


def par(x: float) -> str:
    return f"({num(x)})" if x < 0 else num(x)


def subscript(i: int) -> str:
    return str(i).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def superscript(i: int) -> str:
    return str(i).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
