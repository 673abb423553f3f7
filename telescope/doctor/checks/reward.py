"""The score: whether it says anything, its size, and its parts."""

from __future__ import annotations

import math

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check, ledger_check, ledger_sign
from telescope.doctor.curves import Curves, onset
from telescope.doctor.finding import Place
from telescope.doctor.recorded import Recorded

_SCORE = "reward/score_mean"


@curve_check(
    "reward",
    "serious",
    charts=(_SCORE, "credit/advantage_std"),
    settings=("reward.functions", "reward.weights", "data.answer", "eval.correct_score"),
)
def constant_reward(run: Curves) -> Sign | None:
    """Every step has exactly the same mean score, and not because the task is solved."""
    score = run.need(_SCORE, least=limits.CONSTANT_STEPS)
    size = np.maximum(np.abs(score.values[1:]), 1e-9)
    same = np.abs(np.diff(score.values)) <= 1e-7 * size
    place = onset(same & ~run.solved(score.steps[1:]), limits.CONSTANT_STEPS - 1)
    value = float(score.values[place])
    return Sign(
        since=int(score.steps[place]),
        numbers={"score": value, "steps": limits.CONSTANT_STEPS},
        variant="zero" if abs(value) < 1e-9 else "",
        confidence=0.95,
    )


@curve_check(
    "reward",
    "note",
    charts=(_SCORE, "credit/advantage_std"),
    settings=("steps", "data.files", "data.task"),
)
def saturated_reward(run: Curves) -> Sign | None:
    """All answers get the top score: the run has nothing left to learn from."""
    score = run.need(_SCORE, least=limits.SATURATED_STEPS)
    top = run.top_score
    if top is None:
        return None
    place = onset(score.values >= top - 1e-6, limits.SATURATED_STEPS)
    begin = int(score.steps[place])
    accuracy = run.accuracy()
    poor = accuracy is not None and accuracy.values[-1] < limits.SOLVED
    variant = "poor" if poor else "start" if begin <= 1 else ""
    return Sign(
        since=begin,
        numbers={"score": top, "accuracy": float(accuracy.values[-1]) if accuracy else math.nan},
        severity="warning" if variant else "note",
        variant=variant,
        confidence=0.9,
    )


@curve_check(
    "reward",
    "serious",
    charts=("credit/advantage_std", _SCORE, "critic/vf_loss", "critic/grad_norm"),
    settings=("reward.normalise", "reward.clip", "reward.weights", "critic.clip_value"),
)
def reward_scale(run: Curves) -> Sign | None:
    """Raw advantages far larger or smaller than 1, from the start on."""
    spread = run.need("credit/advantage_std", least=limits.SCALE_STEPS)
    first = spread.values[: limits.SCALE_STEPS]
    typical = float(np.median(first))
    largest = float(spread.values.max())
    small = 0 < typical < limits.SCALE_SMALL and largest < 4 * limits.SCALE_SMALL
    score = run.get(_SCORE)
    if typical <= limits.SCALE_LARGE and not small:
        return None
    if score is not None and not small and typical > limits.SCALE_TIMES * run.score_size():
        return None  # it comes from V or from the KL penalty
    return Sign(
        since=int(spread.steps[0]),
        numbers={"spread": typical, "score": score.start() if score else math.nan},
        severity="warning" if small else "serious",
        variant="small" if small else "",
        confidence=0.85,
        change={"reward.normalise": True},
    )


@ledger_sign("reward_scale")
def recorded_scale(run: Curves, recorded: Recorded) -> Sign | None:
    """All scores are tiny, or a few prompts are paid far off all others, whatever the answer."""
    answers = list(recorded.answers(limits.NOISY_STEPS))
    scores = np.array([score for _, _, score, _ in answers])
    if len(scores) < limits.OUTLIERS_LEAST:
        return None
    largest = float(np.abs(scores).max())
    if 0 < largest < limits.SCALE_SMALL and run.setting("credit.kl_coef"):
        return Sign(
            since=answers[0][3].step,
            numbers={"score": largest},
            severity="warning",
            variant="tiny",
            confidence=0.85,
            change={"reward.normalise": True},
        )
    low, middle, high = np.quantile(scores, (0.05, 0.5, 0.95))
    far = np.abs(scores - middle) > limits.OUTLIER * (high - low)
    prompts = {answers[i][0] for i in np.flatnonzero(far)}
    of_prompts = [i for i, (prompt, *_) in enumerate(answers) if prompt in prompts]
    texts = {answers[i][1] for i in of_prompts}
    if high <= low or len(texts) < 2 or not far[of_prompts].all():
        return None
    return Sign(
        since=answers[of_prompts[0]][3].step,
        numbers={
            "count": len(prompts),
            "score": float(np.median(scores[of_prompts])),
            "share": len(of_prompts) / len(scores),
            "low": float(low),
            "high": float(high),
        },
        severity="warning",
        variant="prompts",
        places=tuple(answers[i][3] for i in of_prompts[:3]),
        confidence=0.85,
    )


@ledger_check("reward", "serious", charts=(_SCORE,), settings=("reward.functions", "reward.model"))
def noisy_reward(run: Curves, recorded: Recorded) -> Sign | None:
    """The same answer to the same prompt gets another score."""
    seen: dict[tuple[str, str], list[tuple[float, Place]]] = {}
    for prompt, response, score, place in recorded.answers(limits.NOISY_STEPS):
        seen.setdefault((prompt, response), []).append((score, place))
    scores = [score for each in seen.values() for score, _ in each]
    again = [each for (prompt, _), each in seen.items() if prompt and len(each) > 1]
    if len(again) < limits.NOISY_LEAST or np.ptp(scores) < 1e-9:
        return None
    least = limits.NOISY_SPREAD * float(np.ptp(scores))
    differ = [each for each in again if np.ptp([score for score, _ in each]) > least]
    if len(differ) < limits.NOISY * len(again):
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


@ledger_check("reward", "warning", charts=(_SCORE,), settings=("reward.weights",))
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
    if times < limits.PART_DOMINATES:
        return None
    numbers = {"large": large, "small": small, "times": times}
    return Sign(since=recorded.chosen[0], numbers=numbers)


@curve_check("reward", "warning", charts=(_SCORE,), settings=("reward.functions", "reward.weights"))
def part_constant(run: Curves) -> Sign | None:
    """One part of the reward is the same for every answer of the run, while another one varies."""
    parts = {name: run.get(f"reward/{name}", limits.CONSTANT_STEPS) for name in run.part_names()}
    known = {name: curve for name, curve in parts.items() if curve is not None}
    still = [name for name, curve in known.items() if np.ptp(curve.values) < 1e-9]
    if len(known) < 2 or not still or len(still) == len(known):
        return None
    part = min(still, key=lambda name: abs(known[name].values[0]))
    value = float(known[part].values[0])
    return Sign(
        since=int(known[part].steps[0]),
        numbers={"part": part, "value": value},
        variant="" if value else "zero",
        confidence=0.7,
    )


@curve_check(
    "reward",
    "warning",
    charts=("reward/clipped", _SCORE),
    settings=("reward.clip", "reward.scale", "reward.normalise"),
)
def score_clipped(run: Curves) -> Sign | None:
    """Most scores lie beyond the limit: good and very good answers are paid the same."""
    clipped = run.need("reward/clipped")
    share = clipped.running_median()
    place = onset(share > limits.SCORES_CLIPPED)
    limit = run.setting("reward.clip")
    return Sign(
        since=int(clipped.steps[place]),
        numbers={"share": float(share[-1]), "limit": limit or math.nan},
        confidence=0.85,
        change={"reward.clip": "none"},
    )
