"""What comes of it all. These findings are consequences of any other finding that is there."""

from __future__ import annotations

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check
from telescope.doctor.curves import Curves, onset

_SCORE = "reward/score_mean"


@curve_check(
    "outcome",
    "serious",
    charts=(_SCORE, "eval/greedy_accuracy", "actor/entropy", "reward/kl"),
    settings=("actor.lr", "credit.kl_coef", "reward.functions"),
)
def reward_falls(run: Curves) -> Sign | None:
    """The score fell below its start, or lost most of what it had gained."""
    score = run.need(_SCORE, least=limits.SCORE_WINDOW)
    start = score.start(limits.SCORE_START)
    now = score.running_mean()
    best = np.maximum.accumulate(now)
    chance = 1.5 * run.chance()
    lost = (best - now > limits.LOST * (best - start)) & (best - start > 2 * chance)
    worse = start - now > limits.WORSE * abs(start)
    beyond = np.maximum(best, start) - now > chance
    place = onset((lost | worse) & beyond)
    return Sign(
        since=int(score.steps[place]),
        numbers={"best": float(best[place]), "now": float(now[-1])},
        confidence=0.85,
    )


@curve_check(
    "outcome",
    "warning",
    charts=(_SCORE, "actor/approx_kl", "reward/kl"),
    settings=("actor.lr", "rollout.batch_size", "reward.functions"),
)
def no_progress(run: Curves) -> Sign | None:
    """Many steps, and the score is where it was."""
    score = run.need(_SCORE, least=limits.NO_PROGRESS_STEPS)
    steps = score.steps
    flat = ~run.learned(steps) & ~run.solved(steps)
    place = onset(flat, limits.NO_PROGRESS_STEPS)
    if not flat[-1]:
        return None
    numbers = {
        "steps": limits.NO_PROGRESS_STEPS,
        "start": score.start(limits.SCORE_START),
        "now": float(score.running_mean()[-1]),
    }
    return Sign(since=int(steps[place]), numbers=numbers, confidence=0.7)
