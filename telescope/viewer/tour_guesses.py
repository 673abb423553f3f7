"""What a visitor of the tour guesses before each truth: a number, a sign or a token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from telescope.viewer.payload import number_of
from telescope.viewer.tour_answer import Answer
from telescope.viewer.tour_facts import Facts
from telescope.viewer.tour_texts import SKINS, option_texts

Guess = dict[str, Any]


def _reach(x: float) -> float:
    """The smallest of 0.05, 0.1, 0.2, 0.5, 1, 2, 5, … that leaves some room above |x|."""
    wanted = max(1.2 * abs(x), 0.05)
    power: float = 10.0 ** math.floor(math.log10(wanted) + 1e-9)
    return next(power * c for c in (1, 2, 5, 10) if power * c >= wanted * (1 - 1e-9))


def _number(truth: float, low: float, high: float, unit: str = "points") -> Guess:
    return {
        "kind": "number",
        "truth": number_of(truth),
        "low": number_of(low),
        "high": number_of(high),
        "step": number_of((high - low) / 100),
        "unit": unit,
    }


def _level(truth: float, near: Sequence[float]) -> Guess:
    """A number among others of its kind: from 0, or below it, to the largest."""
    highest = max([truth, *near, 0.0])
    high = 1.0 if 0.3 < highest <= 1.0 else _reach(highest)
    lowest = min([truth, *near, 0.0])
    return _number(truth, -_reach(lowest) if lowest < 0 else 0.0, high)


def _choice(truth: Sequence[str], names: Sequence[str]) -> Guess:
    options = [{"id": name, "label": option_texts(name)} for name in names]
    return {"kind": "choice", "truth": list(truth), "options": options}


def _sign(x: float) -> Guess:
    truth = "plus" if x > 5e-4 else "minus" if x < -5e-4 else "zero"
    return _choice([truth], ["plus", "zero", "minus"])


def _tokens(x: Answer, sizes: dict[int, float], more: Sequence[str] = ()) -> Guess:
    """Which token has the largest |size|? The largest of those in the picture, up to three."""
    most = 3 - len(more)
    largest = sorted(sizes, key=lambda k: -abs(sizes[k]))[:most]
    top = abs(sizes[largest[0]])
    truth = [str(x.at[k]) for k in largest if top - abs(sizes[k]) < 5e-4]
    made = [
        {"id": str(x.at[k]), "token": x.at[k], "label": dict.fromkeys(SKINS, x.texts[k])}
        for k in sorted(largest)
    ]
    made += [{"id": name, "label": option_texts(name)} for name in more]
    return {"kind": "choice", "truth": truth if top >= 5e-4 else [], "options": made}


def _guess_value(x: Answer, facts: Facts) -> Guess:
    values = x.columns["V"]
    if len(x) < 3:
        return _level(values[0], values)
    moves = {k: x.after(k) - values[k] for k in x.shown() if k + 1 < len(x)}
    return _tokens(x, moves)


def _guess_reward(x: Answer, facts: Facts) -> Guess:
    rewards = x.columns["r"]
    if len(x) == 1:
        return _number(rewards[0], -_reach(rewards[0]), _reach(rewards[0]))
    if facts["lands"]:
        return _choice(["last"], ["first", "last", "spread"])
    return _tokens(x, {k: rewards[k] for k in x.shown()} | {facts["big_k"]: facts["big_r"]})


def _guess_surprise(x: Answer, facts: Facts) -> Guess:
    reach = _reach(max(map(abs, x.columns["d"])))
    return _number(facts["p_d"], -reach, reach)


def _guess_weight(x: Answer, facts: Facts) -> Guess:
    if "s_w" not in facts:
        return _choice(["n0"], ["n0", "n1", "n2"])
    return _number(facts["s_w"], 0.0, 1.0, "percent")


def _guess_target(x: Answer, facts: Facts) -> Guess:
    values = x.columns["V"]
    return _level(facts["a_R"], [*values, facts["a_V"]])


def _guess_whitened(x: Answer, facts: Facts) -> Guess:
    if not facts["whiten"]:
        return _choice(["same"], ["same", "nought"])
    return _sign(facts["w_W"])


def _guess_ratio(x: Answer, facts: Facts) -> Guess:
    return _number(facts["u_rho"], 0.0, max(2.0, _reach(facts["u_rho"])), "factor")


def _guess_outcome(x: Answer, facts: Facts) -> Guess:
    return _level(facts["o"], [facts.get("best", 0.0), facts.get("worst", 0.0)])


def _guess_baseline(x: Answer, facts: Facts) -> Guess:
    return _level(facts["b"], [facts.get("best", 0.0), facts.get("worst", 0.0)])


def _guess_share(x: Answer, facts: Facts) -> Guess:
    advantages = x.columns["A"]
    guess = _tokens(x, {k: advantages[k] for k in x.shown()}, ["all"])
    return guess | {"truth": ["all"]} if facts["equal_A"] else guess


GUESSES: dict[str, Callable[[Answer, Facts], Guess]] = {
    "V": _guess_value,
    "r": _guess_reward,
    "d": _guess_surprise,
    "lam": _guess_weight,
    "A": lambda x, facts: _sign(facts["a_A"]),
    "R": _guess_target,
    "W": _guess_whitened,
    "rho": _guess_ratio,
    "o": _guess_outcome,
    "b": _guess_baseline,
    "sigma": lambda x, facts: _level(facts["scale"], [1.0]),
    "gA": lambda x, facts: _sign(facts["g_A"]),
    "share": _guess_share,
}
