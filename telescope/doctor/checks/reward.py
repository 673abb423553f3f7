"""The score: whether it says anything, its size, and whether it means what it should."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor.check import Sign, curve_check, ledger_check
from telescope.doctor.curves import Curve, Curves, onset
from telescope.doctor.finding import Place
from telescope.doctor.recorded import Recorded
from telescope.doctor.thresholds import (
    ACCURACY_FALL,
    ACCURACY_FLAT,
    CONSTANT_STEPS,
    EXPLOITED_GAIN,
    FALL_ERRORS,
    HELD_OUT,
    NOISY,
    NOISY_LEAST,
    NOISY_SPREAD,
    OVERFIT_GAP,
    PART_DOMINATES,
    PERSIST,
    SATURATED_STEPS,
    SCALE_LARGE,
    SCALE_SMALL,
    SCALE_STEPS,
    SCORE_START,
    SCORE_WINDOW,
    SOLVED,
)

_SCORE = "reward/score_mean"
_NOT_PARTS = (
    "score_mean",
    "kl",
    "kl_coef",
    "token_reward_mean",
    "shaped_mean",
    "overlong",
    "clipped",
    "norm_mean",
    "norm_std",
)
"""Metrics of the reward that are not one of its parts."""


@curve_check(
    "constant_reward",
    "reward",
    "serious",
    charts=(_SCORE, "credit/advantage_std"),
    settings=("reward.functions", "reward.weights", "data.answer", "eval.correct_score"),
    explains=(
        "no_gradient",
        "flat_groups",
        "critic_useless",
        "lr_too_low",
        "collapse",
        "kl_runaway",
        "entropy_explosion",
        "whitening_flips",
        "reward_scale",
        "same_response",
        "length_drift",
    ),
)
def constant_reward(run: Curves) -> Sign | None:
    """Every step has exactly the same mean score, and not because the task is solved."""
    score = run.get(_SCORE, least=CONSTANT_STEPS)
    if score is None:
        return None
    size = np.maximum(np.abs(score.values[1:]), 1e-9)
    same = np.abs(np.diff(score.values)) <= 1e-7 * size
    place = onset(same & ~run.solved(score.steps[1:]), CONSTANT_STEPS - 1)
    if place is None:
        return None
    value = float(score.values[place])
    return Sign(
        since=int(score.steps[place]),
        numbers={"score": value, "steps": CONSTANT_STEPS},
        variant="zero" if abs(value) < 1e-9 else "",
        confidence=0.95,
    )


@curve_check(
    "saturated_reward",
    "reward",
    "note",
    charts=(_SCORE, "credit/advantage_std"),
    settings=("steps", "data.files", "data.task"),
)
def saturated_reward(run: Curves) -> Sign | None:
    """All answers get the top score: the run has nothing left to learn from."""
    score = run.get(_SCORE, least=SATURATED_STEPS)
    top = run.top_score
    if score is None or top is None:
        return None
    place = onset(score.values >= top - 1e-6, SATURATED_STEPS)
    if place is None:
        return None
    begin = int(score.steps[place])
    accuracy = run.accuracy()
    poor = accuracy is not None and accuracy.values[-1] < SOLVED
    return Sign(
        since=begin,
        numbers={"score": top, "accuracy": float(accuracy.values[-1]) if accuracy else math.nan},
        severity="warning" if poor else "note",
        variant="poor" if poor else "",
        confidence=0.9,
    )


@curve_check(
    "reward_scale",
    "reward",
    "serious",
    charts=("credit/advantage_std", _SCORE, "critic/vf_loss", "critic/grad_norm"),
    settings=("reward.normalise", "reward.clip", "reward.weights", "critic.clip_value"),
    explains=(
        "value_clip_binds",
        "critic_useless",
        "value_scale",
        "grad_spike",
        "lr_too_high",
        "lr_too_low",
        "kl_runaway",
        "kl_too_strong",
        "whitening_flips",
        "collapse",
    ),
)
def reward_scale(run: Curves) -> Sign | None:
    """Raw advantages far larger or smaller than 1, from the start on."""
    spread = run.get("credit/advantage_std", least=SCALE_STEPS)
    if spread is None:
        return None
    first = spread.values[:SCALE_STEPS]
    typical = float(np.median(first))
    small = typical < SCALE_SMALL and typical > 0 and float(spread.values.max()) < 4 * SCALE_SMALL
    if typical <= SCALE_LARGE and not small:
        return None
    score = run.get(_SCORE)
    return Sign(
        since=int(spread.steps[0]),
        numbers={"spread": typical, "score": score.start() if score else math.nan},
        severity="warning" if small else "serious",
        variant="small" if small else "",
        confidence=0.85,
        change={"reward.normalise": True},
    )


@ledger_check(
    "noisy_reward",
    "reward",
    "serious",
    charts=(_SCORE,),
    settings=("reward.functions", "reward.model"),
    explains=(
        "critic_useless",
        "lr_too_low",
        "collapse",
        "kl_runaway",
        "partial_credit",
        "overfitting",
        "over_optimisation",
    ),
)
def noisy_reward(run: Curves, recorded: Recorded) -> Sign | None:
    """The same answer to the same prompt gets another score."""
    seen: dict[tuple[str, str], list[tuple[float, Place]]] = {}
    for step in recorded.steps():
        rows = zip(
            step.known_rows("prompt"),
            step.known_rows("response"),
            step.known_rows("score"),
            strict=False,
        )
        for row, (prompt, response, score) in enumerate(rows):
            place = step.response_place(row, score=score)
            seen.setdefault((prompt, response), []).append((score, place))
    scores = [score for each in seen.values() for score, _ in each]
    again = [each for (prompt, _), each in seen.items() if prompt and len(each) > 1]
    if len(again) < NOISY_LEAST or np.ptp(scores) < 1e-9:
        return None
    least = NOISY_SPREAD * float(np.ptp(scores))
    differ = [each for each in again if np.ptp([score for score, _ in each]) > least]
    if len(differ) < NOISY * len(again):
        return None
    shown = differ[0]
    low = min(shown, key=lambda pair: pair[0])
    high = max(shown, key=lambda pair: pair[0])
    return Sign(
        since=recorded.chosen[0],
        numbers={"share": len(differ) / len(again), "low": low[0], "high": high[0]},
        places=(low[1], high[1]),
        confidence=0.9,
    )


@ledger_check(
    "part_dominates",
    "reward",
    "warning",
    charts=(_SCORE,),
    settings=("reward.weights",),
)
def part_dominates(run: Curves, recorded: Recorded) -> Sign | None:
    """One part of the reward varies so much more than another that the other does not count."""
    weights = run.setting("reward.weights") or {}
    values: dict[str, list[float]] = {}
    for step in recorded.steps():
        for parts in step.known_rows("parts"):
            for name, value in parts:
                values.setdefault(name, []).append(abs(weights.get(name, 1.0)) * value)
    spreads = {name: float(np.std(each)) for name, each in values.items()}
    known = {name: spread for name, spread in spreads.items() if spread > 1e-9}
    if len(known) < 2:
        return None
    large = max(known, key=lambda name: known[name])
    small = min(known, key=lambda name: known[name])
    times = known[large] / known[small]
    if times < PART_DOMINATES:
        return None
    numbers = {"large": large, "small": small, "times": times}
    return Sign(since=recorded.chosen[0], numbers=numbers, confidence=0.8)


# ---- does the score mean what it should? ----


@curve_check(
    "partial_credit",
    "reward",
    "serious",
    charts=(_SCORE, "eval/greedy_accuracy", "eval/sampled_accuracy"),
    settings=("reward.weights", "reward.functions", "eval.correct_score"),
    explains=("collapse", "kl_runaway", "length_drift", "same_response", "looping"),
)
def partial_credit(run: Curves) -> Sign | None:
    """The score rises and held-out accuracy does not: the policy earns something else."""
    gap = _rise_without_accuracy(run)
    if gap is None:
        return None
    accuracy, step, gained = gap
    best = float(accuracy.values[accuracy.steps <= step].max())
    if best - accuracy.values[0] > max(ACCURACY_FLAT, 2 * run.accuracy_error(best)):
        return None
    part, part_gain = _part_that_rose(run, step)
    numbers = {
        "gained": gained,
        "before": float(accuracy.values[0]),
        "now": accuracy.value_at(step),
        "part": part,
        "part_gain": part_gain,
    }
    return Sign(
        since=_since_rise(run), numbers=numbers, confidence=0.85, variant="part" if part else ""
    )


@curve_check(
    "over_optimisation",
    "reward",
    "serious",
    charts=(_SCORE, "eval/greedy_accuracy", "eval/sampled_accuracy", "reward/kl"),
    settings=("credit.kl_coef", "reward.model", "steps"),
    explains=("kl_runaway", "collapse", "length_drift", "same_response", "looping"),
)
def over_optimisation(run: Curves) -> Sign | None:
    """Held-out accuracy falls from its best while the score does not."""
    accuracy = run.accuracy()
    score = run.get(_SCORE, least=SCORE_WINDOW)
    if accuracy is None or score is None or len(accuracy) < 3:
        return None
    best = np.maximum.accumulate(accuracy.values)
    error = np.array([FALL_ERRORS * run.accuracy_error(float(each)) for each in best])
    fell = best - accuracy.values > np.maximum(ACCURACY_FALL, error)
    smooth = score.trail(SCORE_WINDOW, "mean")
    place = onset(fell, min(2, len(fell)))
    if place is None:
        return None
    at_best = float(accuracy.steps[int(accuracy.values[: place + 1].argmax())])
    score_then = float(score.at(np.array([at_best]), smooth)[0])
    score_now = float(score.at(accuracy.steps[-1:], smooth)[0])
    if math.isnan(score_then) or score_now < score_then - run.chance():
        return None
    coef = run.setting("credit.kl_coef") or 0.0
    return Sign(
        since=int(at_best),
        numbers={
            "best": float(best[place]),
            "now": float(accuracy.values[-1]),
            "score_then": score_then,
            "score_now": score_now,
        },
        confidence=0.85,
        change={"credit.kl_coef": max(4 * coef, 0.05)},
    )


@curve_check(
    "overfitting",
    "reward",
    "warning",
    charts=(_SCORE, "eval/sampled_score", "eval/greedy_score"),
    settings=("data.size", "data.files", "steps", "credit.kl_coef"),
    explains=("collapse",),
)
def overfitting(run: Curves) -> Sign | None:
    """The training score is far above the held-out one, which does not rise any more."""
    few = (run.setting("eval.samples") or HELD_OUT) < HELD_OUT / 4
    held_out = run.get("eval/greedy_score" if few else "eval/sampled_score", least=2)
    score = run.get(_SCORE, least=SCORE_WINDOW)
    top = run.top_score
    if held_out is None or score is None or top is None:
        return None
    trained = score.at(held_out.steps, score.trail(SCORE_WINDOW, "mean"))
    apart = trained - held_out.values > OVERFIT_GAP * top
    apart[0] = False
    if not apart[-1]:
        return None
    first = int(np.flatnonzero(apart)[0])
    numbers = {"trained": float(trained[-1]), "held_out": float(held_out.values[-1])}
    return Sign(since=int(held_out.steps[first]), numbers=numbers, confidence=0.8)


def _rise_without_accuracy(run: Curves) -> tuple[Curve, int, float] | None:
    """Accuracy, the step, and the gain of the score, where only the score rose."""
    accuracy = run.accuracy()
    score = run.get(_SCORE, least=SCORE_WINDOW)
    if accuracy is None or score is None or len(accuracy) < 2:
        return None
    scale = run.top_score or abs(score.start(SCORE_START)) or 1.0
    steps = accuracy.steps[1:]
    gains = run.gain(steps)
    error = 2 * run.accuracy_error(float(accuracy.values[0]))
    flat = accuracy.values[1:] - accuracy.values[0] <= max(ACCURACY_FLAT, error)
    rose = gains > max(EXPLOITED_GAIN * scale, run.chance())
    bad = flat & rose & (accuracy.values[1:] < SOLVED)
    if not bad[-1]:
        return None
    return accuracy, int(steps[-1]), float(gains[-1])


def _part_that_rose(run: Curves, step: int) -> tuple[str, float]:
    """The part of the score that gained most since the start; no name if there is one part."""
    found = []
    for name in run.names():
        part = name.removeprefix("reward/")
        if name.startswith("reward/") and part not in _NOT_PARTS:
            curve = run.get(name, least=SCORE_START)
            if curve is not None:
                now = float(curve.at(np.array([float(step)]), curve.trail(SCORE_WINDOW, "mean"))[0])
                found.append((part, now - curve.start(SCORE_START)))
    return max(found, key=lambda pair: pair[1]) if len(found) > 1 else ("", 0.0)


def _since_rise(run: Curves) -> int:
    """When the score first was above its start by more than chance."""
    score = run.get(_SCORE)
    assert score is not None
    place = onset(run.learned(score.steps), min(PERSIST, len(score)))
    return int(score.steps[place or 0])
