"""What the sampler tries: too little, or too much."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor.check import Sign, curve_check, ledger_check
from telescope.doctor.curves import Curves
from telescope.doctor.finding import Place
from telescope.doctor.recorded import Recorded, RecordedStep
from telescope.doctor.thresholds import (
    HOT_GAP,
    SHARP,
    SHARP_ENTROPY,
    SHARP_STEPS,
)

_SHOWN = 3


@ledger_check(
    "no_exploration",
    "sampler",
    "warning",
    charts=("actor/entropy",),
    settings=("rollout.top_k", "rollout.top_p", "rollout.temperature"),
    explains=("flat_groups", "copied_answers", "lr_too_low", "collapse", "same_response"),
)
def no_exploration(run: Curves, recorded: Recorded) -> Sign | None:
    """Sampled tokens are far likelier than the policy's entropy allows: mean −log π must be H."""
    found = []
    for step in recorded.steps():
        surprise = _surprise(step)
        if surprise is not None and surprise[1] > SHARP_ENTROPY:
            found.append((step, *surprise))
    sharp = [each for each in found if each[1] < SHARP * each[2]]
    if len(sharp) < SHARP_STEPS or 2 * len(sharp) < len(found):
        return None
    step, surprise_of_step, entropy = sharp[0]
    change = {"rollout.top_k": 0} if run.setting("rollout.top_k") else {}
    return Sign(
        since=step.step,
        numbers={"surprise": surprise_of_step, "entropy": entropy},
        places=_most_certain(step),
        confidence=0.85,
        change=change,
    )


def _surprise(step: RecordedStep) -> tuple[float, float] | None:
    """Means of −log π of the sampled tokens and of the entropy at the same places, in nats."""
    logs = step.flat("old_log_probs")
    entropy = step.flat("entropy")
    if logs is None or entropy is None:
        return None
    known = step.mask & np.isfinite(logs) & np.isfinite(entropy)
    if not known.any():
        return None
    return float(-logs[known].mean()), float(entropy[known].mean())


def _most_certain(step: RecordedStep) -> tuple[Place, ...]:
    """Tokens at places where the entropy is high."""
    logs = step.flat("old_log_probs")
    entropy = step.flat("entropy")
    assert logs is not None
    assert entropy is not None
    known = np.where(step.mask & np.isfinite(entropy), entropy, -np.inf)
    order = np.argsort(-known)[:_SHOWN]
    return tuple(
        step.place(int(at), log_prob=logs[at], entropy=entropy[at]) for at in order if known[at] > 0
    )


@curve_check(
    "hot_sampling",
    "sampler",
    "warning",
    charts=("eval/greedy_score", "eval/sampled_score", "actor/entropy"),
    settings=("rollout.temperature",),
    explains=("entropy_explosion", "mostly_truncated", "kl_runaway", "lr_too_high"),
)
def hot_sampling(run: Curves) -> Sign | None:
    """With a temperature above 1, sampled answers are far worse than greedy ones."""
    temperature = run.setting("rollout.temperature")
    greedy = run.get("eval/greedy_score", least=2)
    sampled = run.get("eval/sampled_score", least=2)
    top = run.top_score
    if not temperature or temperature <= 1 or greedy is None or sampled is None or top is None:
        return None
    apart = greedy.values - sampled.at(greedy.steps)
    wide = apart[1:] > HOT_GAP * top
    if not wide[-1] or wide.mean() < 0.5 or math.isnan(apart[-1]):
        return None
    return Sign(
        since=int(greedy.steps[1:][wide][0]),
        numbers={
            "temperature": temperature,
            "greedy": float(greedy.values[-1]),
            "sampled": sampled.value_at(float(greedy.steps[-1])),
        },
        confidence=0.75,
        change={"rollout.temperature": 1.0},
    )
