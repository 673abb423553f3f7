"""Answers to one prompt, and answers that are all alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from telescope.doctor.check import Sign, curve_check, ledger_check, ledger_sign, witness
from telescope.doctor.curves import Curves, onset
from telescope.doctor.finding import Finding, Place
from telescope.doctor.recorded import Recorded, RecordedStep
from telescope.doctor.thresholds import (
    COPIED,
    COPIED_LEAST,
    FLAT_GROUPS,
    FLAT_SERIOUS,
    LOOP_DISTINCT,
    LOOPING,
    PAIR_COPIED,
    PAIRS_LEAST,
    PERSIST,
    SAME_RESPONSE,
    SMOOTH,
    SOLVED,
)

_LEAST_GROUPS = 4
_LEAST_PROMPTS = 8
_LOOP_TOKENS = 32
"""A shorter response is not judged."""

_AFTER_FLAT = (
    "no_gradient",
    "lr_too_low",
    "lr_too_high",
    "entropy_explosion",
    "kl_runaway",
    "collapse",
)
"""What may follow where advantages are 0: only KL and entropy terms move the policy."""


@curve_check(
    "flat_groups",
    "groups",
    "serious",
    charts=("reward/flat_groups", "reward/score_mean"),
    settings=("rollout.n", "rollout.dynamic_sampling", "data.files", "data.task"),
    explains=_AFTER_FLAT,
)
def flat_groups(run: Curves) -> Sign | None:
    """In most groups all scores are equal, so that no answer is better than another."""
    flat = run.get("reward/flat_groups", least=PERSIST)
    if flat is None:
        return None
    share = flat.trail(SMOOTH)
    place = onset((share > FLAT_GROUPS) & ~run.solved(flat.steps), PERSIST)
    if place is None:
        return None
    return _flat_sign(run, int(flat.steps[place]), float(share[-1]))


def _flat_sign(run: Curves, since: int, share: float) -> Sign:
    n = run.setting("rollout.n")
    return Sign(
        since=since,
        numbers={"share": share},
        severity="serious" if share >= FLAT_SERIOUS else "warning",
        confidence=0.9,
        change={"rollout.n": 2 * n, "rollout.dynamic_sampling": 4} if n else {},
    )


@ledger_sign("flat_groups")
def recorded_flat_groups(run: Curves, recorded: Recorded) -> Sign | None:
    """The same from the recorded groups, in at least half of the steps."""
    if "reward/flat_groups" in run:
        return None
    shares = [(step.step, _flat_share(step, run.top_score)) for step in recorded.steps()]
    known = [(step, share) for step, share in shares if share is not None]
    over = [(step, share) for step, share in known if share > FLAT_GROUPS]
    if len(over) < 2 or 2 * len(over) < len(known):
        return None
    return _flat_sign(run, over[0][0], float(np.mean([share for _, share in over])))


def _flat_share(step: RecordedStep, top: float | None) -> float | None:
    """Share of groups with equal scores; None if there are too few groups, or all is solved."""
    scores = step.known_rows("score")
    groups = [rows for rows in step.groups.values() if len(rows) > 1]
    if not scores or len(groups) < _LEAST_GROUPS:
        return None
    if top is not None and float(np.mean(scores)) >= SOLVED * top:
        return None
    spreads = [np.ptp([scores[row] for row in rows]) for rows in groups]
    return float(np.mean([spread < 1e-9 for spread in spreads]))


@ledger_check(
    "copied_answers",
    "groups",
    "serious",
    charts=("reward/flat_groups",),
    settings=("rollout.n", "rollout.engine"),
    explains=("flat_groups", *_AFTER_FLAT),
)
def copied_answers(run: Curves, recorded: Recorded) -> Sign | None:
    """Answers of a group are equal more often than their own probabilities allow."""
    if run.setting("rollout.top_k") or (run.setting("rollout.top_p") or 1.0) < 1:
        return None  # log-probs are those of all tokens, so that the probabilities are too low
    steps = recorded.steps()
    twins = [twin for step in steps for twin in _twins(step)]
    if len(twins) >= COPIED_LEAST:
        share, expected = np.mean(twins, axis=0)
        if share - expected >= COPIED:
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
        if len(each) >= PAIRS_LEAST and share >= PAIR_COPIED and share - expected >= COPIED:
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
                places=tuple(steps[0].response_place(rows[at]) for at in (first, second)),
                confidence=0.9,
            )
    return None


def _pairs(step: RecordedStep) -> Iterator[tuple[tuple[int, int], bool, float]]:
    """Of each pair of places in a group: whether its answers are one, and the chance of that."""
    ids = step.rows("responses")
    logs = step.tokens_of("rollout_log_probs")
    if not logs or not all(np.isfinite(row).all() for row in logs):
        return
    for rows in step.groups.values():
        for (i, first), (j, second) in combinations(enumerate(rows), 2):
            chance = float(np.exp(min(logs[first].sum(), 0.0)))
            yield (i, j), ids[first] == ids[second], chance


def _twins(step: RecordedStep) -> list[tuple[bool, float]]:
    """Of each answer in a group: whether another one is the same, and the chance of that."""
    ids = step.rows("responses")
    logs = step.tokens_of("rollout_log_probs")
    if not logs or not all(np.isfinite(row).all() for row in logs):
        return []
    found = []
    for rows in step.groups.values():
        for row in rows:
            others = [other for other in rows if other != row]
            p = float(np.exp(min(logs[row].sum(), 0.0)))
            if others:
                same = any(ids[other] == ids[row] for other in others)
                found.append((same, 1 - (1 - p) ** len(others)))
    return found


@ledger_check(
    "same_response",
    "groups",
    "serious",
    charts=("actor/entropy", "reward/score_mean"),
    settings=("actor.entropy_coef", "credit.kl_coef", "actor.lr"),
    explains=("flat_groups", "no_gradient"),
)
def same_response(run: Curves, recorded: Recorded) -> Sign | None:
    """Different prompts get the same answer, and it is not right."""
    for step in recorded.steps():
        texts = step.known_rows("response")
        prompts = step.known_rows("prompt")
        if len(set(prompts)) < _LEAST_PROMPTS:
            continue
        text, count = Counter(texts).most_common(1)[0]
        share = count / len(texts)
        scores = step.known_rows("score")
        top = run.top_score
        good = bool(scores) and top is not None and float(np.mean(scores)) >= SOLVED * top
        if share >= SAME_RESPONSE and not good:
            rows = [row for row, each in enumerate(texts) if each == text][:3]
            places = tuple(step.response_place(row) for row in rows)
            return Sign(
                since=step.step,
                numbers={"share": share, "text": text.strip()[:40]},
                variant="" if text.strip() else "empty",
                places=places,
                confidence=0.85,
            )
    return None


@ledger_check(
    "looping",
    "groups",
    "warning",
    charts=("response/length_mean", "response/truncated"),
    settings=("actor.lr", "credit.kl_coef", "reward.overlong_tokens"),
    explains=("mostly_truncated", "length_drift"),
)
def looping(run: Curves, recorded: Recorded) -> Sign | None:
    """Many responses say the same few tokens over and over."""
    for step in recorded.steps():
        rows = [
            row for row, ids in enumerate(step.rows("responses")) if _distinct(ids) < LOOP_DISTINCT
        ]
        if len(rows) >= LOOPING * len(step):
            places = tuple(step.response_place(row) for row in rows[:3])
            numbers = {"share": len(rows) / len(step)}
            return Sign(since=step.step, numbers=numbers, places=places, confidence=0.8)
    return None


def _distinct(ids: list[int]) -> float:
    """Share of different 4-grams; 1 for a short response."""
    if len(ids) < _LOOP_TOKENS:
        return 1.0
    grams = list(zip(ids, ids[1:], ids[2:], ids[3:], strict=False))
    return len(set(grams)) / len(grams)


@witness("flat_groups")
def flat_examples(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The answers of the first group with equal scores."""
    step = recorded.near(finding.since)
    return () if step is None else flat_places(step)


def flat_places(step: RecordedStep) -> tuple[Place, ...]:
    """The answers of the first group with equal scores."""
    scores = step.known_rows("score")
    if not scores:
        return ()
    for rows in step.groups.values():
        own = [scores[row] for row in rows]
        if len(rows) > 1 and max(own) == min(own):
            return tuple(step.response_place(row, score=scores[row]) for row in rows[:3])
    return ()
