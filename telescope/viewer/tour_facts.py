"""What the tour shows of an answer, and the facts that its sentences are about.

Time is counted in tokens that the policy wrote. Of a long answer a few neighbours are shown, and
the last token. A fact that the answer does not have is absent, not zero: the sentences and steps
that need it are then left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from telescope.explain.arithmetic import fill
from telescope.explain.sample import ActorUpdate, Sample
from telescope.explain.text import pieces, shorten

Facts = dict[str, Any]

SHOWN = 7
"""Tokens of one answer in the picture."""
AHEAD = 4
"""How many tokens before the largest change the arcs end, at most."""
AGREES = 1e-3
"""Recorded numbers are rounded: they agree if they differ by less, relative to the larger."""
COLUMNS = {
    "V": "values",
    "r": "token_level_rewards",
    "d": "deltas",
    "A": "advantages",
    "R": "returns",
    "W": "whitened",
}


@dataclass(frozen=True)
class Sum:
    """An equation whose numbers are written by the reader's level."""

    terms: list[float]
    result: float
    factors: dict[int, float] = field(default_factory=dict)
    """Terms that are a product: place -> the factor to show before it."""


class Answer:
    """A response with every column that follows, at the tokens that the policy wrote."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.full = fill(sample)
        self.at = [t for t, m in enumerate(sample.mask) if m]
        texts = pieces(sample.token_bytes)
        self.texts = [shorten(texts[t].strip("␣") or texts[t], 14) for t in self.at]
        self.columns = {
            name: [self.full.columns[column][t] for t in self.at]
            for name, column in COLUMNS.items()
            if column in self.full.columns
        }
        if not sample.settings.estimator_definition.needs.critic:
            for name in ("V", "d", "R"):
                self.columns.pop(name, None)

    def __len__(self) -> int:
        return len(self.at)

    def has(self, *names: str) -> bool:
        return all(name in self.columns for name in names)

    def after(self, k: int) -> float:
        """V after step k."""
        is_last = k + 1 == len(self)
        return self.sample.bootstrap if is_last else self.columns["V"][k + 1]

    @property
    def update(self) -> ActorUpdate | None:
        """The last update of the policy that has ratios."""
        found = [update for update in self.full.actor_updates if update.ratio]
        return found[-1] if found else None

    @property
    def outcome(self) -> float:
        return math.fsum(self.columns["r"])

    # ---- which tokens ----

    def focus(self) -> int:
        """The step after which V changes most; without V, the one with the largest |A|."""
        before_last = range(max(len(self) - 1, 1))
        if self.has("V"):
            return max(before_last, key=lambda k: abs(self.after(k) - self.columns["V"][k]))
        if self.has("A"):
            return max(before_last, key=lambda k: abs(self.columns["A"][k]))
        return 0

    def anchor(self) -> int:
        """The step at which the arcs end."""
        return max(self.focus() - AHEAD, 0)

    def shown(self) -> list[int]:
        """The steps in the picture."""
        count = len(self)
        if count <= SHOWN:
            return list(range(count))
        start = min(self.anchor(), count - SHOWN)
        return [*range(start, start + SHOWN - 1), count - 1]


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
        "long": len(x) > SHOWN,
        "tools": len(x) < len(sample),
        "gamma": settings.gamma,
        "lam": lam,
        "gl": settings.gamma * lam,
        "has_lam": settings.own_lam is not None,
        "beta": credit.kl_coef,
        "truncated": sample.truncated or end != 0,
        "cut": end != 0,
        "end": end,
        "critic": settings.estimator_definition.needs.critic,
        "groups": settings.estimator_definition.needs.groups,
        "estimator": settings.estimator_definition.name,
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
        "last_i": x.at[-1],
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
    sizes = sorted(map(abs, moves), reverse=True)
    return {
        "V0": values[0],
        "tok0": x.texts[0],
        "f": x.texts[k],
        "f_i": x.at[k],
        "f_V": values[k],
        "f_next": x.after(k),
        "f_move": x.after(k) - values[k],
        "f_last": k + 1 == len(x),
        "still": bool(moves) and sizes[0] < 5e-4,
        "tied": len(sizes) > 1 and sizes[0] - sizes[1] < 5e-4,
        "moves": moves,
    }


def _surprises(x: Answer, decay: float) -> Facts:
    values = x.columns["V"]
    deltas = x.columns["d"]
    k = x.focus()
    gamma = x.sample.settings.gamma
    factors = {} if gamma == 1 else {1: gamma}
    out: Facts = {"f_d": deltas[k]}
    if x.has("r"):
        r = x.columns["r"][k]
        parts = [r, gamma * x.after(k), -values[k]]
        out |= {"f_r": r, "f_sum": Sum(parts, deltas[k], factors)}
        out["d_follows"] = agree(math.fsum(parts), deltas[k])
    a = x.anchor()
    source = k if k > a else a + 1
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
            "w1": decay,
        }
    return out


def _advantages(x: Answer) -> Facts:
    a = x.anchor()
    settings = x.sample.settings
    decay = settings.gamma * settings.lam(len(x))
    parts = [decay**k * delta for k, delta in enumerate(x.columns["d"][a:])]
    advantage = x.columns["A"][a]
    lowest = min(range(len(x)), key=lambda k: x.columns["A"][k])
    highest = max(range(len(x)), key=lambda k: x.columns["A"][k])
    own, *later = parts
    return {
        "a_A": advantage,
        "a_later": math.fsum(later),
        "a_sum": Sum(_shortened(parts), advantage),
        "a_two": Sum([own, math.fsum(later)], advantage),
        "a_terms": len(parts),
        "a_left_out": max(len(parts) - 5, 0) if len(parts) > 6 else 0,
        "A_follows": agree(math.fsum(parts), advantage),
        "low": x.texts[lowest],
        "low_i": x.at[lowest],
        "low_A": x.columns["A"][lowest],
        "high": x.texts[highest],
        "high_i": x.at[highest],
        "high_A": x.columns["A"][highest],
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
