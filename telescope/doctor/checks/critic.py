"""The critic: whether V predicts returns, and whether it may move towards them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, attempt, curve_check, ledger_check
from telescope.doctor.curves import Curves, find_onset, onset
from telescope.doctor.recorded import Recorded, RecordedStep, State

_VARIANCE = "critic/explained_variance"
_PREFIX = 16
"""Tokens of an answer whose states are compared."""


def _has_critic(run: Curves) -> bool:
    """Without a critic there are values of 0, and no loss of theirs."""
    return "critic/vf_loss" in run


@curve_check(
    "critic",
    "warning",
    charts=(_VARIANCE, "critic/vf_loss"),
    settings=("critic.lr", "critic.epochs", "critic_warmup", "critic.clip_value"),
)
def critic_useless(run: Curves) -> Sign | None:
    """After its first updates the critic is still no better than a constant."""
    still = attempt(_stands_still, run)
    if still is not None:
        return still
    variance = run.need(_VARIANCE, least=limits.CRITIC_STEPS)
    if not _has_critic(run):
        return None
    now = variance.running_median(limits.CRITIC_WINDOW)
    late = np.arange(len(now)) >= limits.CRITIC_STEPS - 1
    place = onset((now <= limits.USELESS) & late & ~run.solved(variance.steps))
    lr = run.setting("critic.lr")
    return Sign(
        since=int(variance.steps[place]),
        numbers={"variance": float(now[place + limits.PERSIST - 1])},
        change={"critic.lr": lr * 10} if lr and lr <= 1e-5 else {"critic.epochs": 4},
    )


def _stands_still(run: Curves) -> Sign | None:
    """V does not move, though it lies beside the returns."""
    value = run.need("critic/value_mean", least=2 * limits.PERSIST)
    returns = run.need("critic/return_mean", least=2 * limits.PERSIST)
    if not _has_critic(run):
        return None
    first = value.values[: 2 * limits.PERSIST]
    apart = np.abs(returns.values[: 2 * limits.PERSIST] - first)
    if not np.ptp(first) < limits.STILL * float(np.median(apart)):
        return None
    lr = run.setting("critic.lr")
    return Sign(
        since=int(value.steps[0]),
        numbers={
            "value": float(first[-1]),
            "target": float(returns.values[2 * limits.PERSIST - 1]),
        },
        variant="still",
        confidence=0.9,
        change={"critic.lr": max(1e-4, 100 * lr)} if lr else {},
    )


@curve_check(
    "critic",
    "serious",
    charts=(_VARIANCE, "critic/value_mean", "critic/return_mean", "critic/vf_loss"),
    settings=("critic.head_init", "critic.lr", "critic_warmup", "reward.normalise"),
)
def value_scale(run: Curves) -> Sign | None:
    """V varies more than the returns, or lies far beside them, and stays there."""
    stays = attempt(_stays_wrong, run)
    return stays if stays is not None else attempt(_far_too_wide, run)


def _stays_wrong(run: Curves) -> Sign | None:
    """V is wrong for 10 steps."""
    variance = run.need(_VARIANCE, least=2 * limits.PERSIST)
    if not _has_critic(run) or attempt(_stands_still, run) is not None:
        return None
    steps = variance.steps
    wild = variance.running_median() < limits.WRONG_SCALE
    bias = _bias(run, steps)
    for bad, variant in ((wild, ""), (bias > limits.VALUE_BIAS, "bias")):
        place = find_onset(bad, 2 * limits.PERSIST)
        if place is not None:
            value = run.get("critic/value_mean")
            returns = run.get("critic/return_mean")
            begin = float(steps[place])
            return Sign(
                since=int(begin),
                numbers={
                    "variance": float(variance.running_median()[place]),
                    "value": value.value_at(begin) if value else math.nan,
                    "target": returns.value_at(begin) if returns else math.nan,
                },
                variant=variant,
                change=_calmer(run, variant),
            )
    return None


def _far_too_wide(run: Curves) -> Sign | None:
    """V varies many times more than the returns: 5 steps show it, e.g. with a random value head.

    The critic may still learn. So it is serious only as long as it lasts.
    """
    variance = run.need(_VARIANCE, least=limits.PERSIST)
    loss = run.need("critic/vf_loss")
    steps = variance.steps
    trains_policy = steps > (run.setting("critic_warmup") or 0)
    far = (variance.values < limits.FAR_TOO_WIDE) & trains_policy & ~run.solved(steps)
    place = onset(far)
    errors = np.sqrt(2 * loss.at(steps))[place : place + limits.PERSIST]
    size = run.top_score or run.score_size()
    # Where all scores are equal, returns vary so little that any V varies more.
    if not errors.max() > limits.ERROR_OF_V * size:
        return None
    lasts = variance.running_median()[-1] < limits.WRONG_SCALE
    return Sign(
        since=int(steps[place]),
        numbers={
            "first": int(steps[place]),
            "variance": float(variance.values[place]),
            "last": int(steps[-1]),
            "now": float(variance.values[-1]),
        },
        severity="serious" if lasts else "warning",
        variant="far",
        change=_calmer(run, "far"),
    )


def _calmer(run: Curves, variant: str) -> dict[str, Any]:
    """What to try: a head of zeros; if it is one already, a lower rate where V swings."""
    lr = run.setting("critic.lr")
    if run.setting("critic.head_init") != "zero":
        return {"critic.head_init": "zero", "critic_warmup": 10}
    return {"critic.lr": lr / 10} if lr and not variant else {"critic_warmup": 10}


def _bias(run: Curves, steps: np.ndarray) -> np.ndarray:
    """|mean V − mean R| in standard deviations of the advantage."""
    value = run.get("critic/value_mean")
    returns = run.get("critic/return_mean")
    spread = run.get("credit/advantage_std")
    if value is None or returns is None or spread is None:
        return np.zeros(len(steps))
    apart = np.abs(value.median_at(steps) - returns.median_at(steps))
    return np.nan_to_num(apart / np.maximum(spread.median_at(steps), 0.02))


@curve_check(
    "critic", "warning", charts=("critic/vf_clipfrac", _VARIANCE), settings=("critic.clip_value",)
)
def value_clip_binds(run: Curves) -> Sign | None:
    """Value clipping stops most of the critic's updates, step after step."""
    clipped = run.need("critic/vf_clipfrac", least=2 * limits.PERSIST)
    now = clipped.running_median()
    place = onset(now > limits.VALUE_CLIP, 2 * limits.PERSIST)
    limit = run.setting("critic.clip_value")
    return Sign(
        since=int(clipped.steps[place]),
        numbers={"share": float(now[place + limits.PERSIST]), "limit": limit or math.nan},
        confidence=0.85,
        change={"critic.clip_value": max(10 * limit, 0.2)} if limit else {},
    )


@ledger_check("laws", "serious")
def values_differ(run: Curves, recorded: Recorded) -> Sign | None:
    """V of equal states is as far apart as V of any two rows: it does not belong to its state."""
    if not _has_critic(run):
        return None
    equal = [pair for step in recorded.steps() for pair in _equal_states(step)]
    others = [apart for step in recorded.steps() for apart in _other_rows(step)]
    if len(equal) < limits.EQUALS_LEAST or not others:
        return None
    apart = [abs(first[2] - second[2]) for first, second in equal]
    typical = float(np.median(apart))
    if not typical > max(limits.OTHER_V * float(np.median(others)), 1e-6):
        return None
    worst = equal[int(np.argmax(apart))]
    return Sign(
        since=equal[0][0][0].step,
        numbers={
            "equal": typical,
            "others": float(np.median(others)),
            "first": worst[0][2],
            "second": worst[1][2],
        },
        places=tuple(step.place(at, V=value) for step, at, value in worst),
        confidence=0.85,
    )


Visit = tuple[RecordedStep, int, float]
"""Step, place in its flat columns, and V there."""


def _equal_states(step: RecordedStep) -> Iterator[tuple[Visit, Visit]]:
    """Pairs of rows with the same prompt and the same tokens up to and including one."""
    values = step.flat("values")
    if not any(step.known_rows("prompt")) or values is None or not values.any():
        return
    visits: dict[State, list[Visit]] = {}
    for state, at in step.states(_PREFIX):
        visits.setdefault(state, []).append((step, at, float(values[at])))
    for same in visits.values():
        yield from pairwise(same)


def _other_rows(step: RecordedStep) -> Iterator[float]:
    """How far V is apart at the same place of neighbours with different prompts."""
    rows = zip(step.known_rows("prompt"), step.tokens_of("values"), strict=False)
    for (prompt, first), (other, second) in pairwise(rows):
        both = min(len(first), len(second), _PREFIX)
        if prompt != other and first.any():
            yield from np.abs(first[:both] - second[:both]).tolist()
