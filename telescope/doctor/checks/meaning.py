"""Whether the score means what it should: does held-out accuracy rise with it?"""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, attempt, curve_check
from telescope.doctor.curves import Curve, Curves, NoSign, find_onset, onset

_SCORE = "reward/score_mean"


@curve_check(
    "reward",
    "serious",
    charts=(_SCORE, "eval/greedy_accuracy", "eval/sampled_accuracy"),
    settings=("reward.weights", "reward.functions", "eval.correct_score"),
)
def partial_credit(run: Curves) -> Sign | None:
    """The score rises and held-out accuracy does not: the policy earns something else."""
    shaped = attempt(_rise_by_shaping, run)
    if shaped is not None:
        return shaped
    accuracy, step, gained = _rise_without_accuracy(run)
    best = float(accuracy.values[accuracy.steps <= step].max())
    if best - accuracy.values[0] > max(limits.ACCURACY_FLAT, 2 * run.accuracy_error(best)):
        return None
    part, part_gain = _part_that_rose(run, step)
    highest = float(run.need(_SCORE).values.max())
    numbers = {
        "gained": gained,
        "before": float(accuracy.values[0]),
        "now": accuracy.value_at(step),
        "part": part,
        "part_gain": part_gain,
        "highest": highest,
    }
    variant = "negative" if highest <= 0 else "part" if part else ""
    return Sign(since=_since_rise(run), numbers=numbers, confidence=0.85, variant=variant)


@curve_check(
    "reward",
    "serious",
    charts=(_SCORE, "eval/greedy_accuracy", "eval/sampled_accuracy", "reward/kl"),
    settings=("credit.kl_coef", "reward.model", "steps"),
)
def over_optimisation(run: Curves) -> Sign | None:
    """Held-out accuracy falls from its best while the score does not."""
    score = run.need(_SCORE, least=limits.SCORE_WINDOW)
    accuracy = run.accuracy()
    if accuracy is None or len(accuracy) < 3:
        return None
    best = np.maximum.accumulate(accuracy.values)
    error = np.array([limits.FALL_ERRORS * run.accuracy_error(float(each)) for each in best])
    fell = best - accuracy.values > np.maximum(limits.ACCURACY_FALL, error)
    place = onset(fell, min(2, len(fell)))
    at_best = float(accuracy.steps[int(accuracy.values[: place + 1].argmax())])
    score_then = float(score.mean_at(np.array([at_best]))[0])
    score_now = float(score.mean_at(accuracy.steps[-1:])[0])
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
    "reward",
    "warning",
    charts=(_SCORE, "eval/sampled_score", "eval/greedy_score"),
    settings=("data.size", "data.files", "steps", "credit.kl_coef"),
)
def overfitting(run: Curves) -> Sign | None:
    """The training score is far above the held-out one, which does not rise any more."""
    few = (run.setting("eval.samples") or limits.HELD_OUT) < limits.HELD_OUT / 4
    held_out = run.need("eval/greedy_score" if few else "eval/sampled_score", least=2)
    score = run.need(_SCORE, least=limits.SCORE_WINDOW)
    top = run.top_score
    if top is None:
        return None
    trained = score.mean_at(held_out.steps)
    apart = trained - held_out.values > limits.OVERFIT_GAP * top
    apart[0] = False
    if not apart[-1]:
        return None
    first = int(np.flatnonzero(apart)[0])
    before = score.start(limits.SCORE_START)
    at_once = held_out.steps[0] <= 1 and before - held_out.values[0] > limits.OVERFIT_GAP * top
    return Sign(
        since=int(held_out.steps[0 if at_once else first]),
        numbers={
            "trained": float(trained[-1]),
            "held_out": float(held_out.values[-1]),
            "trained_before": before,
            "held_out_before": float(held_out.values[0]),
        },
        variant="kind" if at_once else "",
    )


@curve_check(
    "reward",
    "warning",
    charts=(_SCORE, "eval/sampled_score", "eval/greedy_score"),
    settings=("data.files", "data.answer", "reward.functions"),
)
def label_mismatch(run: Curves) -> Sign | None:
    """The same policy earns far more on held-out prompts than on those that it is trained on."""
    held_out = run.need("eval/sampled_score", least=2)
    score = run.need(_SCORE, least=limits.SCORE_WINDOW)
    top = run.top_score
    if top is None:
        return None
    trained = score.mean_at(held_out.steps)
    before = score.mean_at(held_out.steps - limits.SCORE_WINDOW)
    trained = trained + np.maximum(np.nan_to_num(trained - before), 0) / 2  # a mean lags behind
    error = limits.FALL_ERRORS * run.accuracy_error(0.5) / math.sqrt(2) * top
    better = held_out.values - trained > max(limits.HELD_OUT_BETTER * top, error)
    better[held_out.steps < 2 * limits.SCORE_WINDOW] = False
    if not better[-1]:
        return None
    first = int(np.flatnonzero(better)[0])
    numbers = {"trained": float(trained[-1]), "held_out": float(held_out.values[-1])}
    return Sign(since=int(held_out.steps[first]), numbers=numbers, confidence=0.6)


def _rise_without_accuracy(run: Curves) -> tuple[Curve, int, float]:
    """Accuracy, the step, and the gain of the score, where only the score rose."""
    score = run.need(_SCORE, least=limits.SCORE_WINDOW)
    accuracy = run.accuracy()
    if accuracy is None or len(accuracy) < 2:
        raise NoSign
    scale = run.top_score or abs(score.start(limits.SCORE_START)) or 1.0
    steps = accuracy.steps[1:]
    gains = run.gain(steps)
    error = 2 * run.accuracy_error(float(accuracy.values[0]))
    better = accuracy.values[1:] - accuracy.values[0]
    flat = better <= max(limits.ACCURACY_FLAT, error)
    rose = gains > max(limits.EXPLOITED_GAIN * scale, run.chance())
    rose &= gains / scale - better > error
    bad = flat & rose & (accuracy.values[1:] < limits.SOLVED)
    if not bad[-1] or _stays_on_held_out(run, float(gains[-1])):
        raise NoSign
    return accuracy, int(steps[-1]), float(gains[-1])


def _rise_by_shaping(run: Curves) -> Sign | None:
    """The shaped score rises, and the score that is shaped falls by a good part."""
    shaped = run.need("reward/shaped_mean", least=2 * limits.SCORE_WINDOW)
    score = run.need(_SCORE, least=2 * limits.SCORE_WINDOW)
    before = score.start(limits.SCORE_START)
    lost = before - score.running_mean()
    gained = shaped.mean_at(score.steps) - shaped.start(limits.SCORE_START)
    place = onset((lost > max(limits.WORSE * abs(before), run.chance())) & (gained > lost))
    numbers = {"gained": float(gained[-1]), "before": before, "now": before - float(lost[-1])}
    return Sign(since=int(score.steps[place]), numbers=numbers, variant="shaped")


def _stays_on_held_out(run: Curves, gained: float) -> bool:
    """Whether held-out scores gained nothing of it: then nothing is exploited there either."""
    held_out = run.get("eval/sampled_score", least=2) or run.get("eval/greedy_score", least=2)
    return held_out is not None and float(np.ptp(held_out.values)) < limits.HELD_OUT_SAME * gained


def _part_that_rose(run: Curves, step: int) -> tuple[str, float]:
    """The part of the score that gained most since the start; no name if there is one part."""
    found = []
    for part in run.part_names():
        curve = run.get(f"reward/{part}", least=limits.SCORE_START)
        if curve is not None:
            now = float(curve.mean_at(np.array([float(step)]))[0])
            found.append((part, now - curve.start(limits.SCORE_START)))
    return max(found, key=lambda pair: pair[1]) if len(found) > 1 else ("", 0.0)


def _since_rise(run: Curves) -> int:
    """When the score first was above its start by more than chance."""
    score = run.need(_SCORE)
    place = find_onset(run.learned(score.steps), min(limits.PERSIST, len(score)))
    return int(score.steps[place or 0])
