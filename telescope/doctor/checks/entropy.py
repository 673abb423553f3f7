"""Entropy: of the policy's next token, mean over tokens, in nats."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check
from telescope.doctor.curves import Bools, Curve, Curves, Floats, find_onset, onset
from telescope.explain.settings import Settings


@curve_check(
    "entropy",
    "serious",
    charts=("actor/entropy", "reward/score_mean"),
    settings=("actor.entropy_coef", "actor.lr", "credit.kl_coef"),
)
def collapse(run: Curves) -> Sign | None:
    """Entropy that falls while the score rises is learning. Without a gain it is collapse."""
    entropy = run.need("actor/entropy", least=limits.PERSIST)
    start = entropy.start()
    now = entropy.running_median()
    steps = entropy.steps
    solved = run.solved(steps)
    is_low = entropy.start(limits.SCORE_START) < limits.ENTROPY_LOW
    if is_low and not solved[: limits.SCORE_START].any():
        return _cold(run, int(steps[0]), start)
    unlearned = (now < limits.COLLAPSED * start) & ~run.learned(steps)
    stuck = (now < limits.COLLAPSED_EARLY * start) & _stands_still(run, steps)
    for bad, variant in ((unlearned, ""), (stuck, "early")):
        place = find_onset(bad & ~solved)
        if place is not None:
            coef = run.setting("actor.entropy_coef") or 0.0
            return Sign(
                since=int(steps[place]),
                numbers={"before": start, "now": float(now[place + limits.PERSIST - 1])},
                variant=variant,
                severity="warning" if variant else "serious",
                confidence=0.6 if variant else 0.85,
                change={"actor.entropy_coef": max(2 * coef, 0.01)},
            )
    return None


def _cold(run: Curves, since: int, entropy: float) -> Sign:
    """Hardly anything was explored from the first step on."""
    temperature = run.setting("rollout.temperature")
    cold = temperature is not None and temperature < 1
    return Sign(
        since=since,
        numbers={"before": entropy, "temperature": temperature or math.nan},
        variant="cold",
        severity="warning",
        confidence=0.7,
        change={"rollout.temperature": 1.0} if cold else {},
    )


def _stands_still(run: Curves, steps: Floats) -> Bools:
    """Whether the score is low and gained nothing within the last STUCK_STEPS steps."""
    score = run.get("reward/score_mean")
    top = run.top_score
    if score is None or top is None:
        return np.zeros(len(steps), bool)
    before = score.mean_at(steps - limits.STUCK_STEPS)
    now = score.mean_at(steps)
    return (now - before < run.chance()) & (now < limits.STUCK_LOW * top)


@curve_check(
    "entropy",
    "serious",
    charts=("actor/entropy", "reward/score_mean"),
    settings=("actor.entropy_coef", "actor.lr"),
)
def entropy_explosion(run: Curves) -> Sign | None:
    """Entropy far above its start: with a bonus the bonus pays for noise."""
    entropy = run.need("actor/entropy")
    start = entropy.start()
    now = entropy.running_median()
    place = onset((now > limits.EXPLODED * start) & (now > start + limits.EXPLODED_NATS))
    bonus = run.setting("actor.entropy_coef") or 0.0
    calm = np.flatnonzero(entropy.values[:place] <= limits.RISING * start)
    rise = int(calm[-1]) + 1 if len(calm) else 0
    ruled = np.flatnonzero(_bonus_rules(run, entropy)[:rise])
    begin = int(ruled[0]) if len(ruled) else rise
    return Sign(
        since=int(entropy.steps[begin]),
        numbers={"before": start, "now": float(now[-1]), "coef": bonus},
        variant="bonus" if bonus else "",
        confidence=0.9 if bonus else 0.7,
        change={"actor.entropy_coef": 0.0} if bonus else {},
    )


def _bonus_rules(run: Curves, entropy: Curve) -> Bools:
    """Whether the bonus pays a token more, on average, than advantages differ, at each step.

    It pays coef × −log π, whose mean is coef × H.
    """
    steps = entropy.steps
    bonus = run.setting("actor.entropy_coef") or 0.0
    spread = _spread_of_advantages(run, steps)
    if not bonus or run.setting("actor.entropy_target"):
        return np.zeros(len(steps), bool)
    return bonus * entropy.running_median() > limits.BONUS_RULES * spread


def _spread_of_advantages(run: Curves, steps: Floats) -> Floats:
    """σ of the advantages that the actor uses, at each step; NaN where it is not known."""
    unknown = np.full(len(steps), np.nan)
    estimator = run.setting("credit.estimator")
    if estimator is None:
        return unknown
    whiten = run.setting("credit.whiten")
    if Settings.of(estimator=estimator, whiten="auto" if whiten is None else whiten).whiten:
        return np.ones(len(steps))
    raw = run.get("credit/advantage_std")
    return unknown if raw is None else raw.median_at(steps)
