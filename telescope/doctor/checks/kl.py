"""The distance between the policy and the reference, in nats per token."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor.check import Sign, curve_check
from telescope.doctor.curves import Curves, onset
from telescope.doctor.thresholds import (
    KL_FAR,
    KL_FAR_UNLEARNED,
    KL_HELD,
    KL_NEGATIVE,
    KL_RULES,
    KL_RULES_STEPS,
    KL_STRONG,
    LOW_STEPS,
    PERSIST,
    SMOOTH,
)

_CHARTS = ("reward/kl", "reward/kl_coef", "reward/score_mean")


@curve_check(
    "kl_runaway",
    "kl",
    "serious",
    charts=_CHARTS,
    settings=("credit.kl_coef", "credit.kl_target", "actor.kl_loss_coef", "actor.lr"),
    explains=(
        "collapse",
        "same_response",
        "looping",
        "length_drift",
        "mostly_truncated",
        "label_mismatch",
    ),
)
def kl_runaway(run: Curves) -> Sign | None:
    """Far from the reference, or less far but with nothing gained for it."""
    kl = run.get("reward/kl", least=PERSIST)
    if kl is None:
        return None
    now = kl.trail(SMOOTH)
    unlearned = (now > KL_FAR_UNLEARNED) & ~run.learned(kl.steps) & ~run.solved(kl.steps)
    place = onset((now > KL_FAR) | unlearned, PERSIST)
    if place is None:
        return None
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
        severity="serious" if now[-1] > KL_FAR else "warning",
        confidence=0.8,
        change={key: max(4 * coef, 0.05)} if coef is not None else {},
    )


@curve_check(
    "kl_negative",
    "kl",
    "warning",
    charts=_CHARTS,
    settings=("rollout.temperature", "rollout.top_p", "rollout.top_k"),
)
def kl_negative(run: Curves) -> Sign | None:
    """The mean of log π/π_ref over the policy's own samples cannot stay below 0."""
    kl = run.get("reward/kl", least=2 * PERSIST)
    if kl is None:
        return None
    now = kl.trail(2 * SMOOTH)
    place = onset(now < KL_NEGATIVE, PERSIST)
    if place is None:
        return None
    lowest = float(now[place:].min())
    return Sign(since=int(kl.steps[place]), numbers={"kl": lowest}, confidence=0.8)


@curve_check(
    "kl_too_strong",
    "kl",
    "warning",
    charts=_CHARTS,
    settings=("credit.kl_coef", "actor.kl_loss_coef"),
    explains=("lr_too_low", "value_scale", "critic_useless", "whitening_flips", "grad_spike"),
)
def kl_too_strong(run: Curves) -> Sign | None:
    """A large β holds the policy at the reference, or takes more than the score gives."""
    kl = run.get("reward/kl", least=LOW_STEPS)
    given = (run.setting("credit.kl_coef"), run.setting("actor.kl_loss_coef"))
    logged = run.get("reward/kl_coef")  # β may adapt
    coef = max(each or 0.0 for each in (*given, float(logged.values[-1]) if logged else 0.0))
    if kl is None or coef < KL_STRONG:
        return None
    steps = kl.steps
    unlearned = ~run.learned(steps) & ~run.solved(steps)
    now = np.abs(kl.trail(SMOOTH))
    length = run.get("response/length_mean")
    taken = coef * now * (length.at(steps) if length is not None else 1.0)
    spread = run.get("credit/advantage_std")
    spreads = np.zeros(len(steps)) if spread is None else spread.at(steps, spread.trail(SMOOTH))
    most = KL_RULES * run.score_size()
    signs = {
        "": onset((np.abs(kl.trail(2 * SMOOTH)) < KL_HELD) & unlearned, LOW_STEPS),
        "rules": onset((taken > most) & unlearned, KL_RULES_STEPS),
        "noise": onset((spreads > most) & unlearned, KL_RULES_STEPS),
    }
    found = {variant: place for variant, place in signs.items() if place is not None}
    if not found:
        return None
    variant, place = min(found.items(), key=lambda pair: pair[1])
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
