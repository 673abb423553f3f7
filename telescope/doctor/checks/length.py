"""Lengths of responses."""

from __future__ import annotations

import math

from telescope.doctor.check import Sign, curve_check, ledger_check
from telescope.doctor.checks.laws import ENDS, eos_of
from telescope.doctor.curves import Curves, onset
from telescope.doctor.recorded import Recorded, RecordedStep
from telescope.doctor.thresholds import (
    EOS_IGNORED,
    EOS_LEAST,
    EOS_MISSING,
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
    "part_constant",
    "label_mismatch",
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


@ledger_check(
    "eos_missing",
    "length",
    "serious",
    charts=(_LENGTH, _CUT, "reward/score_mean"),
    settings=("model.path", "model.tokenizer_path"),
    explains=_AFTER_CUTS,
)
def eos_missing(run: Curves, recorded: Recorded) -> Sign | None:
    """Answers count as finished and do not end with EOS: it is cut off, or something else stops."""
    for step in recorded.steps():
        eos = step.meta.get("tokens", {}).get("eos")
        finished = _finished(step) if eos is not None else []
        pieces = step.rows("token_bytes")
        without = [
            row
            for row, ids in finished
            if ids[-1] != eos and not (pieces and pieces[row] and pieces[row][-1] in ENDS)
        ]
        if len(finished) >= EOS_LEAST and len(without) > EOS_MISSING * len(finished):
            last = step.offsets[1:] - 1
            places = tuple(step.place(int(last[row])) for row in without[:3])
            numbers = {"share": len(without) / len(finished), "last": places[0].text}
            return Sign(since=step.step, numbers=numbers, places=places, confidence=0.9)
    return None


def _finished(step: RecordedStep) -> list[tuple[int, list[int]]]:
    """Row and ids of the answers that were not cut off; without tools, where a turn may end."""
    ids = step.rows("responses")
    cut = step.known_rows("truncated")
    if not cut or any(0 in mask for mask in step.rows("response_mask")):
        return []
    rows = enumerate(zip(ids, cut, strict=True))
    return [(row, answer) for row, (answer, late) in rows if answer and not late]


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
