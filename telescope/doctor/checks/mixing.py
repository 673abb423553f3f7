"""Groups that have answers to several prompts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, ledger_check
from telescope.doctor.curves import Curves
from telescope.doctor.finding import Place
from telescope.doctor.recorded import Recorded, RecordedStep

_GROUP_MEANS = ("grpo", "dr_grpo", "rloo", "reinforce++_baseline")
"""Estimators whose baseline is made of the scores of the group alone."""


@ledger_check(
    "groups", "serious", charts=("reward/flat_groups",), settings=("rollout.n", "credit.estimator")
)
def groups_mixed(run: Curves, recorded: Recorded) -> Sign | None:
    """A group has answers to several prompts, or its equal answers have different baselines."""
    several = [rows for step in recorded.steps()[:1] for rows in _of_several_prompts(step)]
    if several:
        step = recorded.steps()[0]
        return Sign(
            since=step.step,
            numbers={"share": len(several) / len(step.groups)},
            variant="prompts",
            places=step.response_places(several[0]),
            confidence=0.95,
        )
    if run.setting("credit.estimator") not in _GROUP_MEANS:
        return None
    pairs = [pair for step in recorded.steps() for pair in _baselines_of_equals(step)]
    differ = [places for places, apart in pairs if apart > limits.MIXED]
    if len(pairs) < limits.PAIRS_LEAST or len(differ) < limits.MIXED_SHARE * len(pairs):
        return None
    return Sign(
        since=recorded.chosen[0],
        numbers={"share": len(differ) / len(pairs)},
        places=differ[0],
        confidence=0.9,
    )


def _of_several_prompts(step: RecordedStep) -> list[list[int]]:
    """The groups whose answers are not all to the same prompt."""
    texts = step.known_rows("prompt")
    if not any(texts) or not step.known_rows("group"):
        return []
    return [rows for rows in step.groups.values() if len({texts[row] for row in rows}) > 1]


def _baselines_of_equals(step: RecordedStep) -> Iterator[tuple[tuple[Place, ...], float]]:
    """Neighbours in a group with the same score, and how far their baselines are apart."""
    scores = step.known_rows("score")
    baselines = [float(row[0]) if len(row) else 0.0 for row in step.tokens_of("baselines")]
    spread = float(np.ptp(scores)) if scores else 0.0
    if len(baselines) != len(scores) or spread < 1e-9:
        return
    for rows in step.groups.values():
        for first, second in pairwise(sorted(rows, key=lambda row: scores[row])):
            if scores[first] == scores[second]:
                both = (first, second)
                places = (step.response_place(row, baseline=baselines[row]) for row in both)
                yield tuple(places), abs(baselines[first] - baselines[second]) / spread
