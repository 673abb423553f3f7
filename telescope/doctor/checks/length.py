"""Lengths of responses."""

from __future__ import annotations

import math

from telescope.doctor.check import Sign, curve_check, ledger_check
from telescope.doctor.checks.laws import eos_of
from telescope.doctor.curves import Curves, onset
from telescope.doctor.recorded import Recorded
from telescope.doctor.thresholds import (
    EOS_IGNORED,
    LONGER,
    PERSIST,
    SCORE_START,
    SHORTER,
    SMOOTH,
    TRUNCATED,
)

_LENGTH = "response/length_mean"
_CUT = "response/truncated"


_AFTER_CUTS = (
    "length_drift",
    "looping",
    "constant_reward",
    "flat_groups",
    "critic_useless",
    "prompt_format",
    "partial_credit",
    "lr_too_low",
    "kl_runaway",
    "collapse",
    "no_gradient",
    "same_response",
    "over_optimisation",
)
"""What may follow where responses do not end."""


@curve_check(
    "mostly_truncated",
    "length",
    "serious",
    charts=(_CUT, _LENGTH),
    settings=(
        "rollout.max_response_tokens",
        "reward.overlong_tokens",
        "credit.bootstrap_truncated",
    ),
    explains=_AFTER_CUTS,
)
def mostly_truncated(run: Curves) -> Sign | None:
    """Most responses reach the limit: they are scored before they are finished."""
    cut = run.get(_CUT, least=PERSIST)
    if cut is None:
        return None
    share = cut.trail(SMOOTH)
    place = onset(share > TRUNCATED, PERSIST)
    if place is None or not (share[-1] > TRUNCATED or place == 0):
        return None
    limit = run.setting("rollout.max_response_tokens")
    return Sign(
        since=int(cut.steps[place]),
        numbers={"share": float(share[max(place, len(share) - 1)]), "limit": limit or math.nan},
        severity="serious" if share[-1] > TRUNCATED else "note",
        confidence=0.9,
        change={"rollout.max_response_tokens": 2 * limit} if limit else {},
    )


@ledger_check(
    "eos_ignored",
    "length",
    "serious",
    charts=(_CUT, _LENGTH),
    settings=("model.path",),
    explains=("mostly_truncated", *_AFTER_CUTS),
)
def eos_ignored(run: Curves, recorded: Recorded) -> Sign | None:
    """Responses go on behind EOS: the sampler stops at something else."""
    for step in recorded.steps():
        eos = eos_of(step)
        rows = [row for row, ids in enumerate(step.rows("responses")) if eos in ids[:-1]]
        share = len(rows) / len(step)
        if share > EOS_IGNORED:
            places = tuple(step.response_place(row) for row in rows[:3])
            return Sign(since=step.step, numbers={"share": share}, places=places, confidence=0.9)
    return None


@curve_check(
    "length_drift",
    "length",
    "warning",
    charts=(_LENGTH, _CUT, "reward/score_mean"),
    settings=("actor.aggregation", "rollout.max_response_tokens", "reward.overlong_tokens"),
    explains=("mostly_truncated", "looping"),
)
def length_drift(run: Curves) -> Sign | None:
    """Responses become much longer or shorter, and the score gains nothing by it."""
    length = run.get(_LENGTH, least=PERSIST + SCORE_START)
    if length is None:
        return None
    start = length.start(SCORE_START)
    steps = length.steps
    now = length.trail(SMOOTH)
    free = ~run.learned(steps) & ~run.solved(steps)
    places = {
        "longer": onset((now > LONGER * start) & free, PERSIST),
        "shorter": onset((now < SHORTER * start) & free, PERSIST),
    }
    found = {variant: place for variant, place in places.items() if place is not None}
    if not found:
        return None
    variant, place = min(found.items(), key=lambda pair: pair[1])
    aggregation = run.setting("actor.aggregation")
    return Sign(
        since=int(steps[place]),
        numbers={"before": start, "now": float(now[-1]), "aggregation": aggregation or "?"},
        variant=variant,
        confidence=0.75,
        change={"actor.aggregation": "token-mean"} if aggregation not in (None, "auto") else {},
    )
