"""Sampler and trainer: the same policy, or not; and how old the samples are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check, first_step, ledger_sign, witness
from telescope.doctor.curves import Curves, find_onset, onset
from telescope.doctor.finding import Finding, Place
from telescope.doctor.recorded import Recorded, RecordedStep

_DIFFERENCE = "rollout/logprob_diff"
_PROBABILITIES = "rollout/prob_diff"
"""verl's: of probabilities. It is never larger than that of log-probs, so its limits serve too."""
_SHOWN = 5
"""Tokens named as evidence."""


@curve_check(
    "sampler",
    "serious",
    charts=(_DIFFERENCE,),
    settings=("rollout.engine", "rollout.temperature", "model.dtype", "actor.importance"),
)
def sampler_mismatch(run: Curves) -> Sign | None:
    """Sampler and trainer give the same tokens different log-probs, from the first step on."""
    for name, variant in ((_DIFFERENCE, ""), (_PROBABILITIES, "probabilities")):
        difference = run.get(name, least=limits.SMOOTH)
        if difference is None or difference.start() < limits.MISMATCH_START:
            continue
        now = difference.running_median()
        place = find_onset(now > limits.MISMATCH)
        if place is not None:
            sign = _mismatch(int(difference.steps[place]), float(now[place]))
            return replace(sign, variant=variant or sign.variant)
    return None


def _mismatch(since: int, apart: float) -> Sign:
    return Sign(
        since=since,
        numbers={"apart": apart},
        variant="far" if apart > limits.MISMATCH_FAR else "",
        severity="serious" if apart > limits.MISMATCH_SERIOUS else "warning",
        confidence=0.9,
        change={"actor.importance": "token"},
    )


@ledger_sign("sampler_mismatch")
def tokens_mismatch(run: Curves, recorded: Recorded) -> Sign | None:
    """The same from the tokens: for runs that do not log the difference, or where padding is it."""
    steps = recorded.steps()
    padded = [each for each in steps if _is_of_padding(each)]
    if len(padded) > max(1, len(steps) / 2):
        gap = _mean_gap(padded[0])
        assert gap is not None
        return replace(_mismatch(padded[0].step, gap), variant="padding", severity="serious")
    if _DIFFERENCE in run:
        return None
    apart = [(step.step, _mean_gap(step)) for step in steps]
    known = [(step, gap) for step, gap in apart if gap is not None]
    over = [(step, gap) for step, gap in known if gap > limits.MISMATCH]
    if not over or len(over) < len(known) / 2:
        return None
    return _mismatch(*over[0])


def _is_of_padding(step: RecordedStep) -> bool:
    """Whether only answers to shorter prompts differ: those that have padding on their left."""
    logs = _log_probs(step)
    lengths = np.array([len(ids) for ids in step.known_rows("prompt_ids")])
    if logs is None or not len(lengths) or not step.mask.any():
        return False
    longest = (lengths == lengths.max())[step.row_of]
    gaps = np.abs(logs[0] - logs[1])
    full = gaps[step.mask & longest]
    shorter = gaps[step.mask & ~longest]
    if not len(full) or not len(shorter):
        return False
    return float(shorter.mean()) > limits.PADDED and float(full.mean()) < limits.UNPADDED


@curve_check(
    "sampler",
    "warning",
    charts=("rollout/staleness", _DIFFERENCE),
    settings=("rollout.one_step_off_policy", "ray.samplers", "actor.importance"),
)
def stale_samples(run: Curves) -> Sign | None:
    """Responses are several updates old, or the sampler falls behind the trainer step by step."""
    age = run.get("rollout/staleness", least=limits.SMOOTH)
    if age is not None:
        now = age.running_median()
        place = find_onset(now > limits.STALE)
        if place is not None:
            return _stale(run, int(age.steps[place]), float(now[-1]))
    difference = run.need(_DIFFERENCE, least=limits.SMOOTH)
    if difference.start() >= limits.MISMATCH_START:
        return None
    apart = difference.running_median()
    place = onset(apart > limits.MISMATCH)
    return Sign(
        since=int(difference.steps[place]),
        numbers={"before": difference.start(), "apart": float(apart[-1])},
        severity="serious" if apart[-1] > limits.MISMATCH_SERIOUS else "warning",
        variant="behind",
        confidence=0.85,
    )


def _stale(run: Curves, since: int, age: float) -> Sign:
    asynchronous = run.setting("rollout.one_step_off_policy")
    return Sign(
        since=since,
        numbers={"age": age},
        severity="serious" if age > limits.STALE_SERIOUS else "warning",
        confidence=0.9,
        change={"rollout.one_step_off_policy": False} if asynchronous else {},
    )


@ledger_sign("stale_samples")
@first_step
def old_versions(run: Curves, step: RecordedStep) -> Sign | None:
    """The same from the recorded versions of the policy."""
    versions = step.known_rows("policy_version")
    warmup = run.setting("critic_warmup") or 0
    age = float(step.step - 1 - warmup - np.mean(versions)) if versions else 0.0
    return _stale(run, step.step, age) if age > limits.STALE else None


@witness("sampler_mismatch", "stale_samples")
def tokens_apart(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The tokens on which sampler and trainer are furthest apart."""
    step = recorded.near(finding.since)
    logs = _log_probs(step)
    if logs is None:
        return ()
    sampled, trained = logs
    apart = np.where(step.mask, np.abs(sampled - trained), 0.0)
    worst = np.argsort(-apart)[:_SHOWN]
    return tuple(
        step.place(int(at), rollout_log_prob=sampled[at], log_prob=trained[at])
        for at in worst
        if apart[at] > limits.MISMATCH
    )


def _log_probs(step: RecordedStep) -> tuple[np.ndarray, np.ndarray] | None:
    """Log-probs of the sampler and of the trainer before its update."""
    sampled = step.flat("rollout_log_probs")
    trained = step.flat("old_log_probs")
    first = step.updates(0, "old_log_probs")
    if first is not None:
        trained = first["old_log_probs"]
    return None if sampled is None or trained is None else (sampled, trained)


def _mean_gap(step: RecordedStep) -> float | None:
    logs = _log_probs(step)
    if logs is None or not step.mask.any():
        return None
    return float(np.abs(logs[0] - logs[1])[step.mask].mean())
