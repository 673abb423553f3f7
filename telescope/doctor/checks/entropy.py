"""Entropy: of the policy's next token, mean over tokens, in nats."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor.check import Sign, curve_check
from telescope.doctor.curves import Bools, Curves, Floats, onset
from telescope.doctor.thresholds import (
    COLLAPSED,
    COLLAPSED_EARLY,
    ENTROPY_LOW,
    EXPLODED,
    EXPLODED_NATS,
    PERSIST,
    RISING,
    SCORE_START,
    SCORE_WINDOW,
    SMOOTH,
    STUCK_LOW,
    STUCK_STEPS,
)


@curve_check(
    "collapse",
    "entropy",
    "serious",
    charts=("actor/entropy", "reward/score_mean"),
    settings=("actor.entropy_coef", "actor.lr", "credit.kl_coef"),
    explains=("same_response", "flat_groups", "no_gradient", "lr_too_low", "over_optimisation"),
)
def collapse(run: Curves) -> Sign | None:
    """Entropy that falls while the score rises is learning. Without a gain it is collapse."""
    entropy = run.get("actor/entropy", least=PERSIST)
    if entropy is None:
        return None
    start = entropy.start()
    now = entropy.trail(SMOOTH)
    steps = entropy.steps
    open_task = ~run.solved(steps)
    unlearned = (now < COLLAPSED * start) & ~run.learned(steps) & open_task
    stuck = (now < COLLAPSED_EARLY * start) & _stands_still(run, steps) & open_task
    if entropy.start(SCORE_START) < ENTROPY_LOW and not run.solved(steps)[:SCORE_START].any():
        return _cold(run, int(steps[0]), start)
    for bad, variant in ((unlearned, ""), (stuck, "early")):
        place = onset(bad, PERSIST)
        if place is not None:
            numbers = {"before": start, "now": float(now[place + PERSIST - 1])}
            coef = run.setting("actor.entropy_coef") or 0.0
            return Sign(
                since=int(steps[place]),
                numbers=numbers,
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
    smooth = score.trail(SCORE_WINDOW, "mean")
    before = score.at(steps - STUCK_STEPS, smooth)
    now = score.at(steps, smooth)
    return (now - before < run.chance()) & (now < STUCK_LOW * top)


@curve_check(
    "entropy_explosion",
    "entropy",
    "serious",
    charts=("actor/entropy", "reward/score_mean"),
    settings=("actor.entropy_coef", "actor.lr"),
    explains=("kl_runaway", "mostly_truncated", "length_drift", "kl_negative", "lr_too_high"),
)
def entropy_explosion(run: Curves) -> Sign | None:
    """Entropy far above its start: with a bonus the bonus pays for noise."""
    entropy = run.get("actor/entropy", least=PERSIST)
    if entropy is None:
        return None
    start = entropy.start()
    now = entropy.trail(SMOOTH)
    place = onset((now > EXPLODED * start) & (now > start + EXPLODED_NATS), PERSIST)
    if place is None:
        return None
    coef = run.setting("actor.entropy_coef")
    bonus = bool(coef)
    calm = np.flatnonzero(now[:place] <= RISING * start)
    begin = int(calm[-1]) + 1 if len(calm) else 0
    return Sign(
        since=int(entropy.steps[begin]),
        numbers={"before": start, "now": float(now[-1]), "coef": coef or 0.0},
        variant="bonus" if bonus else "",
        confidence=0.9 if bonus else 0.7,
        change={"actor.entropy_coef": 0.0} if bonus else {},
    )
