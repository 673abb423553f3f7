"""What the sampler tries: too little, or too much."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check, ledger_check
from telescope.doctor.curves import Curves
from telescope.doctor.finding import Place
from telescope.doctor.recorded import Recorded, RecordedStep


@ledger_check(
    "sampler",
    "warning",
    charts=("actor/entropy",),
    settings=("rollout.top_k", "rollout.top_p", "rollout.temperature"),
)
def no_exploration(run: Curves, recorded: Recorded) -> Sign | None:
    """Sampled tokens are far likelier than the policy's entropy allows: mean −log π must be H."""
    seen = [(step, *_surprise(step)) for step in recorded.steps()]
    found = [each for each in seen if each[2] > limits.SHARP_ENTROPY]
    sharp = [each for each in found if each[1] < limits.SHARP * each[2]]
    if len(sharp) < limits.SHARP_STEPS or 2 * len(sharp) < len(found):
        return None
    step, surprise, entropy = sharp[0]
    return Sign(
        since=step.step,
        numbers={"surprise": surprise, "entropy": entropy},
        places=_most_certain(step),
        confidence=0.85,
        change={"rollout.top_k": 0} if run.setting("rollout.top_k") else {},
    )


def _surprise(step: RecordedStep) -> tuple[float, float]:
    """Means of −log π of the sampled tokens and of the entropy at the same places, in nats."""
    logs = step.flat("old_log_probs")
    entropy = step.flat("entropy")
    if logs is None or entropy is None:
        return math.nan, math.nan
    known = step.mask & np.isfinite(logs) & np.isfinite(entropy)
    if not known.any():
        return math.nan, math.nan
    return float(-logs[known].mean()), float(entropy[known].mean())


def _most_certain(step: RecordedStep) -> tuple[Place, ...]:
    """Tokens at places where the entropy is high."""
    entropy = step.need("entropy")
    return step.largest(entropy, log_prob=step.need("old_log_probs"), entropy=entropy)


@curve_check(
    "sampler",
    "warning",
    charts=("eval/greedy_score", "eval/sampled_score", "actor/entropy"),
    settings=("rollout.temperature",),
)
def hot_sampling(run: Curves) -> Sign | None:
    """With a temperature above 1, sampled answers are far worse than greedy ones."""
    temperature = run.setting("rollout.temperature")
    greedy = run.need("eval/greedy_score", least=2)
    sampled = run.need("eval/sampled_score", least=2)
    top = run.top_score
    if not temperature or temperature <= 1 or top is None:
        return None
    apart = greedy.values - sampled.at(greedy.steps)
    wide = apart[1:] > limits.HOT_GAP * top
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
