"""Gradients: finite, not 0, and without spikes."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check
from telescope.doctor.curves import Curves, onset

_WATCHED = (
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/entropy",
    "critic/vf_loss",
    "critic/grad_norm",
    "critic/value_mean",
    "critic/return_mean",
    "reward/kl",
    "reward/score_mean",
)
"""Metrics that must stay finite, and small enough to."""


@curve_check(
    "learning_rate",
    "serious",
    charts=("actor/grad_norm", "actor/pg_loss"),
    settings=("actor.lr", "critic.lr", "actor.max_grad_norm", "model.dtype"),
)
def not_finite(run: Curves) -> Sign | None:
    """A metric that is NaN or infinite, or so large that it is about to be."""
    places = [(step, name, math.nan) for step, name in run.broken if name in _WATCHED]
    for name in _WATCHED:
        curve = run.get(name)
        if curve is not None:
            large = np.flatnonzero(np.abs(curve.values) > limits.NEAR_NAN)
            if len(large):
                at = int(large[0])
                places.append((int(curve.steps[at]), name, float(curve.values[at])))
    if not places:
        return None
    step, name, value = min(places, key=lambda place: place[0])
    key = "critic.lr" if name.startswith("critic") else "actor.lr"
    lr = run.setting(key)
    return Sign(
        since=step,
        numbers={"metric": name, "value": value},
        variant="" if math.isnan(value) else "large",
        confidence=0.95,
        change={key: lr / 10} if lr else {},
    )


@curve_check(
    "learning_rate",
    "serious",
    charts=("actor/grad_norm", "actor/pg_loss"),
    settings=("rollout.n", "credit.estimator", "model.lora_rank"),
)
def no_gradient(run: Curves) -> Sign | None:
    """The actor's gradient is exactly 0: there is nothing that it could learn from."""
    norm = run.need("actor/grad_norm")
    place = onset((norm.values < 1e-8) & ~run.solved(norm.steps))
    return Sign(since=int(norm.steps[place]), confidence=0.95)


@curve_check(
    "learning_rate",
    "warning",
    charts=("actor/grad_norm", "critic/grad_norm"),
    settings=("actor.max_grad_norm", "critic.max_grad_norm", "actor.lr", "critic.lr"),
)
def grad_spike(run: Curves) -> Sign | None:
    """Several gradients far above the usual size within a short time."""
    for role, least in (("actor", limits.SPIKE_ACTOR), ("critic", limits.SPIKE_CRITIC)):
        norm = run.get(f"{role}/grad_norm", least=limits.SPIKES)
        if norm is None:
            continue
        usual = norm.running_median(limits.SPIKE_WINDOW)
        spikes = np.flatnonzero((norm.values > limits.SPIKE * usual) & (norm.values > least))
        for first, last in zip(spikes, spikes[limits.SPIKES - 1 :], strict=False):
            if norm.steps[last] - norm.steps[first] <= limits.SPIKE_WINDOW:
                numbers = {
                    "role": role,
                    "largest": float(norm.values[spikes].max()),
                    "usual": float(usual[last]),
                    "count": len(spikes),
                }
                return Sign(since=int(norm.steps[first]), numbers=numbers, confidence=0.7)
    return None
