"""Answers to one prompt, and answers that are all alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from telescope.algorithms.definitions import ESTIMATORS
from telescope.doctor import thresholds as limits
from telescope.doctor.check import (
    Sign,
    curve_check,
    first_step,
    ledger_check,
    ledger_sign,
    witness,
)
from telescope.doctor.curves import Curves, onset
from telescope.doctor.finding import Finding, Place
from telescope.doctor.recorded import SHOWN, Recorded, RecordedStep

_LEAST_GROUPS = 4
_LEAST_PROMPTS = 8
_LOOP_TOKENS = 32
"""A shorter response is not judged."""


@curve_check(
    "groups",
    "serious",
    charts=("reward/flat_groups", "reward/score_mean"),
    settings=("rollout.n", "rollout.dynamic_sampling", "data.files", "data.task"),
)
def flat_groups(run: Curves) -> Sign | None:
    """In most groups all scores are equal, so that no answer is better than another."""
    if not _compares_groups(run):
        return None
    flat = run.need("reward/flat_groups")
    share = flat.running_median()
    place = onset((share > limits.FLAT_GROUPS) & ~run.solved(flat.steps))
    return _flat_sign(run, int(flat.steps[place]), float(share[-1]))


def _compares_groups(run: Curves) -> bool:
    """Whether the estimator compares answers to one prompt. One that is not known may."""
    known = ESTIMATORS.built_in.get(run.setting("credit.estimator"))
    return known is None or known.needs.groups


def _flat_sign(run: Curves, since: int, share: float) -> Sign:
    n = run.setting("rollout.n")
    return Sign(
        since=since,
        numbers={"share": share},
        severity="serious" if share >= limits.FLAT_SERIOUS else "warning",
        confidence=0.9,
        change={"rollout.n": 2 * n, "rollout.dynamic_sampling": 4} if n else {},
    )


@ledger_sign("flat_groups")
def recorded_flat_groups(run: Curves, recorded: Recorded) -> Sign | None:
    """The same from the recorded groups, in at least half of the steps."""
    if "reward/flat_groups" in run or not _compares_groups(run):
        return None
    shares = [(step.step, _flat_share(step, run.top_score)) for step in recorded.steps()]
    known = [(step, share) for step, share in shares if share is not None]
    over = [(step, share) for step, share in known if share > limits.FLAT_GROUPS]
    if len(over) < 2 or 2 * len(over) < len(known):
        return None
    return _flat_sign(run, over[0][0], float(np.mean([share for _, share in over])))


def _flat_share(step: RecordedStep, top: float | None) -> float | None:
    """Share of groups with equal scores; None if there are too few groups, or all is solved."""
    scores = step.known_rows("score")
    groups = [rows for rows in step.groups.values() if len(rows) > 1]
    if not scores or len(groups) < _LEAST_GROUPS:
        return None
    if _is_solved(scores, top):
        return None
    spreads = [np.ptp([scores[row] for row in rows]) for rows in groups]
    return float(np.mean([spread < 1e-9 for spread in spreads]))


def _is_solved(scores: list[float], top: float | None) -> bool:
    """Whether nearly every answer of a step is right."""
    return bool(scores) and top is not None and float(np.mean(scores)) >= limits.SOLVED * top


@ledger_check(
    "groups", "serious", charts=("reward/flat_groups",), settings=("rollout.n", "rollout.engine")
)
def copied_answers(run: Curves, recorded: Recorded) -> Sign | None:
    """Answers of a group are equal more often than their own probabilities allow."""
    if run.setting("rollout.top_k") or (run.setting("rollout.top_p") or 1.0) < 1:
        return None  # log-probs are those of all tokens, so that the probabilities are too low
    steps = recorded.steps()
    twins = [twin for step in steps for twin in _twins(step)]
    if len(twins) >= limits.COPIED_LEAST:
        share, expected = np.mean(twins, axis=0)
        if share - expected >= limits.COPIED:
            return Sign(
                since=steps[0].step,
                numbers={"share": float(share), "expected": float(expected)},
                places=flat_places(steps[0]),
                confidence=0.9,
            )
    return _copied_pair(steps)


def _copied_pair(steps: list[RecordedStep]) -> Sign | None:
    """Two places of every group that always have the same answer."""
    found: dict[tuple[int, int], list[tuple[bool, float]]] = {}
    for step in steps:
        for pair, same, chance in _pairs(step):
            found.setdefault(pair, []).append((same, chance))
    for (first, second), each in found.items():
        share, expected = np.mean(each, axis=0)
        is_enough = len(each) >= limits.PAIRS_LEAST and share >= limits.PAIR_COPIED
        if is_enough and share - expected >= limits.COPIED:
            rows = next(rows for rows in steps[0].groups.values() if len(rows) > second)
            return Sign(
                since=steps[0].step,
                numbers={
                    "first": first + 1,
                    "second": second + 1,
                    "share": float(share),
                    "expected": float(expected),
                },
                variant="pair",
                places=steps[0].response_places((rows[first], rows[second])),
                confidence=0.9,
            )
    return None


def _pairs(step: RecordedStep) -> Iterator[tuple[tuple[int, int], bool, float]]:
    """Of each pair of places in a group: whether its answers are one, and the chance of that."""
    ids = step.rows("responses")
    chances = _chances(step)
    for rows in step.groups.values() if chances else ():
        for (i, first), (j, second) in combinations(enumerate(rows), 2):
            yield (i, j), ids[first] == ids[second], chances[first]


def _twins(step: RecordedStep) -> Iterator[tuple[bool, float]]:
    """Of each answer in a group: whether another one is the same, and the chance of that."""
    ids = step.rows("responses")
    chances = _chances(step)
    for rows in step.groups.values() if chances else ():
        for row in rows:
            others = [other for other in rows if other != row]
            if others:
                same = any(ids[other] == ids[row] for other in others)
                yield same, 1 - (1 - chances[row]) ** len(others)


def _chances(step: RecordedStep) -> list[float]:
    """The probability of each response; none if some are not known."""
    logs = step.tokens_of("rollout_log_probs")
    if not all(np.isfinite(row).all() for row in logs):
        return []
    return [float(np.exp(min(row.sum(), 0.0))) for row in logs]


@ledger_check(
    "groups",
    "serious",
    charts=("actor/entropy", "reward/score_mean"),
    settings=("actor.entropy_coef", "credit.kl_coef", "actor.lr"),
)
@first_step
def same_response(run: Curves, step: RecordedStep) -> Sign | None:
    """Different prompts get the same answer, and it is not right."""
    texts = step.known_rows("response")
    if len(set(step.known_rows("prompt"))) < _LEAST_PROMPTS:
        return None
    text, count = Counter(texts).most_common(1)[0]
    share = count / len(texts)
    if share < limits.SAME_RESPONSE or _is_solved(step.known_rows("score"), run.top_score):
        return None
    return Sign(
        since=step.step,
        numbers={"share": share, "text": text.strip()[:40]},
        variant="" if text.strip() else "empty",
        places=step.response_places(row for row, each in enumerate(texts) if each == text),
        confidence=0.85,
    )


@ledger_check(
    "groups",
    "warning",
    charts=("response/length_mean", "response/truncated"),
    settings=("actor.lr", "credit.kl_coef", "reward.overlong_tokens"),
)
@first_step
def looping(run: Curves, step: RecordedStep) -> Sign | None:
    """Many responses say the same few tokens over and over."""
    distinct = [_distinct(ids) for ids in step.rows("responses")]
    rows = [row for row, share in enumerate(distinct) if share < limits.LOOP_DISTINCT]
    if len(rows) < limits.LOOPING * len(step):
        return None
    return Sign(step.step, {"share": len(rows) / len(step)}, places=step.response_places(rows))


def _distinct(ids: list[int]) -> float:
    """Share of different 4-grams; 1 for a short response."""
    if len(ids) < _LOOP_TOKENS:
        return 1.0
    grams = list(zip(ids, ids[1:], ids[2:], ids[3:], strict=False))
    return len(set(grams)) / len(grams)


@witness("flat_groups")
def flat_examples(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    return flat_places(recorded.near(finding.since))


def flat_places(step: RecordedStep) -> tuple[Place, ...]:
    """The answers of the first group with equal scores."""
    scores = step.known_rows("score")
    for rows in step.groups.values() if scores else ():
        own = [scores[row] for row in rows]
        if len(rows) > 1 and max(own) == min(own):
            return tuple(step.response_place(row, score=scores[row]) for row in rows[:SHOWN])
    return ()
