"""The distance between the policy and the reference, in nats per token."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check
from telescope.doctor.curves import Curves, earliest, find_onset, onset

_CHARTS = ("reward/kl", "reward/kl_coef", "reward/score_mean")


@curve_check(
    "kl",
    "serious",
    charts=_CHARTS,
    settings=("credit.kl_coef", "credit.kl_target", "actor.kl_loss_coef", "actor.lr"),
)
def kl_runaway(run: Curves) -> Sign | None:
    """Far from the reference, or less far but with nothing gained for it."""
    kl = run.need("reward/kl")
    now = kl.running_median()
    unlearned = (now > limits.KL_FAR_UNLEARNED) & ~run.learned(kl.steps) & ~run.solved(kl.steps)
    place = onset((now > limits.KL_FAR) | unlearned)
    in_loss = run.setting("actor.kl_loss_coef") and not run.setting("credit.kl_coef")
    key = "actor.kl_loss_coef" if in_loss else "credit.kl_coef"
    coef = run.setting(key)
    logged = run.get("reward/kl_coef")
    known = coef if coef is not None or logged is None else float(logged.values[-1])
    return Sign(
        since=int(kl.steps[place]),
        numbers={
            "most": float(now[place:].max()),
            "kl": float(now[-1]),
            "coef": math.nan if known is None else known,
        },
        severity="serious" if now[-1] > limits.KL_FAR else "warning",
        change={key: max(4 * coef, 0.05)} if coef is not None else {},
    )


@curve_check(
    "kl",
    "warning",
    charts=_CHARTS,
    settings=("rollout.temperature", "rollout.top_p", "rollout.top_k"),
)
def kl_negative(run: Curves) -> Sign | None:
    """The mean of log π/π_ref over the policy's own samples cannot stay below 0."""
    kl = run.need("reward/kl", least=2 * limits.PERSIST)
    now = kl.running_median(2 * limits.SMOOTH)
    place = onset(now < limits.KL_NEGATIVE)
    return Sign(since=int(kl.steps[place]), numbers={"kl": float(now[place:].min())})


@curve_check("kl", "warning", charts=_CHARTS, settings=("credit.kl_coef", "actor.kl_loss_coef"))
def kl_too_strong(run: Curves) -> Sign | None:
    """A large β holds the policy at the reference, or takes more than the score gives."""
    kl = run.need("reward/kl", least=limits.LOW_STEPS)
    given = (run.setting("credit.kl_coef"), run.setting("actor.kl_loss_coef"))
    logged = run.get("reward/kl_coef")  # β may adapt
    coef = max(each or 0.0 for each in (*given, float(logged.values[-1]) if logged else 0.0))
    if coef < limits.KL_STRONG:
        return None
    steps = kl.steps
    unlearned = ~run.learned(steps) & ~run.solved(steps)
    now = np.abs(kl.running_median())
    length = run.get("response/length_mean")
    taken = coef * now * (length.at(steps) if length is not None else 1.0)
    spread = run.get("credit/advantage_std")
    spreads = np.zeros(len(steps)) if spread is None else spread.median_at(steps)
    most = limits.KL_RULES * run.score_size()
    held = np.abs(kl.running_median(2 * limits.SMOOTH)) < limits.KL_HELD
    variant, place = earliest(
        {
            "": find_onset(held & unlearned, limits.LOW_STEPS),
            "rules": find_onset((taken > most) & unlearned, limits.KL_RULES_STEPS),
            "noise": find_onset((spreads > most) & unlearned, limits.KL_RULES_STEPS),
        }
    )
    key = "credit.kl_coef" if run.setting("credit.kl_coef") else "actor.kl_loss_coef"
    return Sign(
        since=int(steps[place]),
        numbers={
            "kl": float(now[-1]),
            "coef": coef,
            "taken": float(np.median(taken[place:])),
            "size": run.score_size(),
            "spread": float(np.median(spreads[place:])),
        },
        variant=variant,
        confidence=0.75,
        change={key: coef / 20},
    )
