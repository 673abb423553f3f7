"""The facts that the tour's sentences are about.

A fact that the answer does not have is absent, not zero: the sentences and steps that need it are
then left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from telescope.viewer.tour_answer import Answer

Facts = dict[str, Any]

AGREES = 1e-3
"""Recorded numbers are rounded: they agree if they differ by less, relative to the larger."""


@dataclass(frozen=True)
class Sum:
    """An equation whose numbers are written by the reader's level."""

    terms: list[float]
    result: float
    factors: dict[int, float] = field(default_factory=dict)
    """Terms that are a product: place -> the factor to show before it."""


@dataclass(frozen=True)
class Calculation:
    """`first` times or over `second`, with its result, written by the reader's level."""

    first: float
    sign: Literal["×", "/"]
    second: float
    result: float


def answer_facts(x: Answer) -> Facts:
    """Facts about one answer and its settings."""
    sample = x.sample
    settings = sample.settings
    credit = settings.credit
    lam = settings.lam(len(x))
    end = sample.bootstrap
    out: Facts = {
        "n": len(x),
        "single": len(x) == 1,
        "few": len(x) < 3,
        "gamma": settings.gamma,
        "lam": lam,
        "gl": settings.gamma * lam,
        "beta": credit.kl_coef,
        "truncated": sample.truncated or end != 0,
        "cut": end != 0,
        "end": end,
        "critic": settings.estimator_definition.needs.critic,
        "whiten": settings.whiten,
    }
    if sample.score is not None:
        out["score"] = sample.score
    out |= _rewards(x)
    if x.has("V"):
        out |= _values(x)
    if x.has("V", "d"):
        out |= _surprises(x, lam * settings.gamma)
    if x.has("V", "d", "A"):
        out |= _advantages(x)
    if x.has("V", "A", "R"):
        out |= _targets(x)
    return out


def agree(x: float, y: float) -> bool:
    return abs(x - y) <= AGREES * max(1.0, abs(x), abs(y))


# ---- one column after the other ----


def _rewards(x: Answer) -> Facts:
    if not x.has("r"):
        return {}
    rewards = x.columns["r"]
    largest = max(range(len(x)), key=lambda k: abs(rewards[k]))
    out: Facts = {
        "r_last": rewards[-1],
        "last": x.texts[-1],
        "big_r": rewards[largest],
        "big_tok": x.texts[largest],
        "big_k": largest,
        "ties_r": sum(agree(abs(r), abs(rewards[largest])) for r in rewards) > 1,
        "quiet": all(r == 0 for r in rewards[:-1]),
        "o": x.outcome,
    }
    columns = x.full.columns
    if "token_level_scores" not in columns:
        return out | {"lands": False}
    scores = [columns["token_level_scores"][t] for t in x.at]
    beta = x.sample.settings.credit.kl_coef
    kls = [columns["kl"][t] for t in x.at] if "kl" in columns else []
    made = [score - beta * k for score, k in zip(scores, kls or [0.0] * len(x), strict=True)]
    out |= {
        "sparse": not any(scores[:-1]),
        "s_last": scores[-1],
        "r_follows": bool(kls or not beta) and all(map(agree, made, rewards)),
    }
    score = x.sample.score
    out["lands"] = out["sparse"] and score is not None and agree(scores[-1], score)
    if kls:
        out |= {"kl_last": kls[-1], "kl_min": min(kls)}
        out |= {"fine_last": Sum([scores[-1], -beta * kls[-1]], rewards[-1])}
    return out


def _values(x: Answer) -> Facts:
    values = x.columns["V"]
    k = x.focus()
    moves = [x.after(j) - values[j] for j in range(len(x) - 1)]
    return {
        "V0": values[0],
        "tok0": x.texts[0],
        "f": x.texts[k],
        "f_V": values[k],
        "f_next": x.after(k),
        "f_move": x.after(k) - values[k],
        "still": bool(moves) and max(map(abs, moves)) < 5e-4,
        "moves": moves,
    }


def _surprises(x: Answer, decay: float) -> Facts:
    values = x.columns["V"]
    deltas = x.columns["d"]
    k = x.peak()
    gamma = x.sample.settings.gamma
    factors = {} if gamma == 1 else {1: gamma}
    out: Facts = {
        "p": x.texts[k],
        "p_i": x.at[k],
        "p_d": deltas[k],
        "p_V": values[k],
        "p_next": x.after(k),
        "p_last": k + 1 == len(x),
    }
    if x.has("r"):
        r = x.columns["r"][k]
        parts = [r, gamma * x.after(k), -values[k]]
        out |= {"p_r": r, "p_sum": Sum(parts, deltas[k], factors)}
        out["d_follows"] = agree(math.fsum(parts), deltas[k])
    a = x.anchor()
    source = _source(x, decay)
    out |= {"a": x.texts[a], "a_i": x.at[a], "a_d": deltas[a], "a_last": a + 1 == len(x)}
    if source < len(x):
        distance = source - a
        weight = decay**distance
        out |= {
            "s": x.texts[source],
            "s_i": x.at[source],
            "s_k": distance,
            "s_d": deltas[source],
            "s_w": weight,
            "s_part": weight * deltas[source],
            "s_comes": Calculation(weight, "×", deltas[source], weight * deltas[source]),
            "w1": decay,
        }
    return out


def _source(x: Answer, decay: float) -> int:
    """The step whose surprise the arcs speak of: the largest that comes back."""
    a = x.anchor()
    arrives = [k for k in (x.peak(), x.focus()) if k > a and decay ** (k - a) >= 0.05]
    return arrives[0] if arrives else a + 1


def _advantages(x: Answer) -> Facts:
    a = x.anchor()
    settings = x.sample.settings
    decay = settings.gamma * settings.lam(len(x))
    parts = [decay**k * delta for k, delta in enumerate(x.columns["d"][a:])]
    advantage = x.columns["A"][a]
    lowest = min(x.shown(), key=lambda k: x.columns["A"][k])
    highest = max(x.shown(), key=lambda k: x.columns["A"][k])
    own, *later = parts
    return {
        "a_A": advantage,
        "a_later": math.fsum(later),
        "a_sum": Sum(_shortened(parts), advantage),
        "a_two": Sum([own, math.fsum(later)], advantage),
        "a_left_out": max(len(parts) - 5, 0) if len(parts) > 6 else 0,
        "A_follows": agree(math.fsum(parts), advantage),
        "low": x.texts[lowest],
        "low_A": x.columns["A"][lowest],
        "high": x.texts[highest],
        "high_A": x.columns["A"][highest],
        "shown_A": [x.columns["A"][k] for k in x.shown()],
    }


def _shortened(parts: list[float]) -> list[float]:
    """Of a long sum the first five terms, and the rest as one."""
    return parts if len(parts) <= 6 else [*parts[:5], math.fsum(parts[5:])]


def _targets(x: Answer) -> Facts:
    a = x.anchor()
    value = x.columns["V"][a]
    advantage = x.columns["A"][a]
    target = x.columns["R"][a]
    out: Facts = {
        "a_V": value,
        "a_R": target,
        "R_sum": Sum([value, advantage], target),
        "R_follows": agree(value + advantage, target),
        "own_R": x.sample.settings.lam_critic is not None,
    }
    if x.has("r"):
        gamma = x.sample.settings.gamma
        left = x.columns["r"][a:]
        came = math.fsum(gamma**k * r for k, r in enumerate(left))
        came += gamma ** len(left) * x.sample.bootstrap
        out |= {"came": came, "R_is_sum": agree(target, came)}
    return out
