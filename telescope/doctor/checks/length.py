"""Lengths of responses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check, first_step, ledger_check, review, sign_of
from telescope.doctor.checks.laws import ENDS, eos_of
from telescope.doctor.curves import (
    Curves,
    earliest,
    find_onset,
    last_onset,
    onset,
)
from telescope.doctor.finding import Finding
from telescope.doctor.recorded import SHOWN, Recorded, RecordedStep

_LENGTH = "response/length_mean"
_CUT = "response/truncated"
_RIGHT_CUT = "response/right_truncated"
_RIGHT_FINISHED = "response/right_finished"


@curve_check(
    "length",
    "serious",
    charts=(_CUT, _LENGTH),
    settings=(
        "rollout.max_response_tokens",
        "reward.overlong_tokens",
        "credit.bootstrap_truncated",
    ),
)
def mostly_truncated(run: Curves) -> Sign | None:
    """Most responses reach the limit: they are scored before they are finished."""
    cut = run.need(_CUT)
    share = cut.running_median()
    many = share > limits.TRUNCATED
    place = onset(many)
    now = last_onset(many) if many[-1] else None
    is_cut = now is not None
    if not is_cut and place > 0:
        return None
    if now is not None:
        place = now
    limit = run.setting("rollout.max_response_tokens")
    is_untrained = is_cut and place == 0 and _has_not_tried(run)
    sign = Sign(
        since=int(cut.steps[place]),
        numbers={"share": float(share[-1]), "limit": limit or math.nan},
        severity="serious" if is_cut and not is_untrained else "note",
        variant="untrained" if is_untrained else "",
        confidence=0.9,
        change={"rollout.max_response_tokens": 2 * limit} if limit else {},
    )
    return sign if sign.severity == "note" else _by_cost(sign, _logged_endings(run, sign.since))


@review("mostly_truncated")
def cut_off_and_right(run: Curves, finding: Finding, recorded: Recorded) -> Finding:
    """The same for a run whose metrics do not say which responses are right."""
    if finding.severity == "note" or _RIGHT_CUT in run:
        return finding
    return _by_cost(finding, _recorded_endings(run, recorded, finding.since))


class _Endings(NamedTuple):
    """One step: how many responses were cut off and finished, and the right share of each."""

    cut: float
    finished: float
    right_cut: float
    right_finished: float


_Judged = TypeVar("_Judged", Sign, Finding)


def _by_cost(judged: _Judged, endings: Iterable[_Endings]) -> _Judged:
    """Truncation that costs few answers is no fault: the answer comes before the limit.

    Endings are compared within a step, where they have one policy: a step with n cut-off and m
    finished responses weighs n·m/(n + m).
    """
    found = np.array([each for each in endings if each.cut and each.finished])
    if not len(found):
        return judged
    n, m, of_cut, of_finished = found.T
    right = (n * of_cut + m * of_finished) / (n + m)
    weights = n * m / (n + m)
    total = weights.sum()
    error = limits.GAIN_ERRORS * math.sqrt((weights * right * (1 - right)).sum()) / total
    cut = float(weights @ of_cut / total)
    finished = float(weights @ of_finished / total)
    lost = finished - cut
    if not (cut >= limits.CUT_RIGHT and lost + error < limits.CUT_LOSES * finished):
        return judged
    return replace(
        judged,
        severity="note" if lost <= error else "warning",
        variant="right",
        numbers={**judged.numbers, "cut": cut, "finished": finished},
        change={},
    )


def _logged_endings(run: Curves, since: float) -> Iterator[_Endings]:
    """By the metrics of each step that had both endings."""
    share = run.need(_CUT)
    of_cut = run.get(_RIGHT_CUT)
    of_finished = run.get(_RIGHT_FINISHED)
    if of_cut is None or of_finished is None:
        return
    rows = (run.setting("rollout.batch_size") or 0) * (run.setting("rollout.n") or 1)
    for step in np.intersect1d(of_cut.steps, of_finished.steps):
        if step >= since:
            cut = share.value_at(step)
            counts = (rows * cut, rows * (1 - cut))
            yield _Endings(*counts, of_cut.value_at(step), of_finished.value_at(step))


def _recorded_endings(run: Curves, recorded: Recorded, since: int) -> Iterator[_Endings]:
    """By the recorded responses; a score of nearly the top is right."""
    if run.top_score is None:
        return
    for is_cut, scores in recorded.endings(since, limits.CUT_STEPS):
        right = scores >= limits.SOLVED * run.top_score
        n, m = int(is_cut.sum()), int((~is_cut).sum())
        if n and m:
            yield _Endings(n, m, float(right[is_cut].mean()), float(right[~is_cut].mean()))


def _has_not_tried(run: Curves) -> bool:
    """Whether the policy stands still from the start though scores differ."""
    still = sign_of("lr_too_low", run)
    from_start = still is not None and still.since <= limits.SLACK
    return from_start and sign_of("constant_reward", run) is None


@ledger_check("length", "serious", charts=(_CUT, _LENGTH), settings=("model.path",))
@first_step
def eos_ignored(run: Curves, step: RecordedStep) -> Sign | None:
    """Responses go on behind EOS: the sampler stops at something else."""
    eos = eos_of(step)
    rows = [row for row, ids in enumerate(step.rows("responses")) if eos in ids[:-1]]
    share = len(rows) / len(step)
    if share <= limits.EOS_IGNORED:
        return None
    return Sign(step.step, {"share": share}, places=step.response_places(rows), confidence=0.9)


@ledger_check(
    "length",
    "serious",
    charts=(_LENGTH, _CUT, "reward/score_mean"),
    settings=("model.path", "model.tokenizer_path"),
)
@first_step
def eos_missing(run: Curves, step: RecordedStep) -> Sign | None:
    """Answers count as finished and do not end with EOS: it is cut off, or something else stops."""
    eos = step.meta.get("tokens", {}).get("eos")
    finished = _finished(step) if eos is not None else []
    pieces = step.rows("token_bytes")
    without = [
        row
        for row, ids in finished
        if ids[-1] != eos and not (pieces and pieces[row] and pieces[row][-1] in ENDS)
    ]
    if len(finished) < limits.EOS_LEAST or len(without) <= limits.EOS_MISSING * len(finished):
        return None
    places = tuple(step.place(int(step.offsets[row + 1]) - 1) for row in without[:SHOWN])
    numbers = {"share": len(without) / len(finished), "last": places[0].text}
    return Sign(step.step, numbers, places=places, confidence=0.9)


def _finished(step: RecordedStep) -> list[tuple[int, list[int]]]:
    """Row and ids of the answers that were not cut off; without tools, where a turn may end."""
    ids = step.rows("responses")
    cut = step.known_rows("truncated")
    if not cut or any(0 in mask for mask in step.rows("response_mask")):
        return []
    rows = enumerate(zip(ids, cut, strict=True))
    return [(row, answer) for row, (answer, late) in rows if answer and not late]


@curve_check(
    "length",
    "warning",
    charts=(_LENGTH, _CUT, "reward/score_mean"),
    settings=("actor.aggregation", "rollout.max_response_tokens", "reward.overlong_tokens"),
)
def length_drift(run: Curves) -> Sign | None:
    """Responses become much longer or shorter, and the score gains nothing by it."""
    length = run.need(_LENGTH, least=limits.PERSIST + limits.SCORE_START)
    start = length.start(limits.SCORE_START)
    steps = length.steps
    now = length.running_median()
    free = ~run.learned(steps) & ~run.solved(steps)
    variant, place = earliest(
        {
            "longer": find_onset((now > limits.LONGER * start) & free),
            "shorter": find_onset((now < limits.SHORTER * start) & free),
        }
    )
    aggregation = run.setting("actor.aggregation")
    return Sign(
        since=int(steps[place]),
        numbers={"before": start, "now": float(now[-1]), "aggregation": aggregation or "?"},
        variant=variant,
        confidence=0.75,
        change={"actor.aggregation": "token-mean"} if aggregation not in (None, "auto") else {},
    )
