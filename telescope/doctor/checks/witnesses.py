"""Tokens and responses that show what the curves found."""

from __future__ import annotations

import numpy as np

from telescope.doctor.check import witness
from telescope.doctor.finding import Finding, Place
from telescope.doctor.recorded import Recorded, RecordedStep

_SHOWN = 3


@witness("lr_too_high", "grad_spike")
def largest_ratios(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The tokens whose probability one training step changed most."""
    step = recorded.near(finding.since)
    terms = None if step is None else step.updates(-1, "old_log_probs", "log_probs")
    if step is None or terms is None:
        return ()
    moved = terms["log_probs"] - terms["old_log_probs"]
    return _largest(step, np.abs(moved), ratio=np.exp(np.clip(moved, -50, 50)))


@witness("kl_runaway")
def largest_kl(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The tokens that are furthest from the reference."""
    step = recorded.near(finding.since)
    kl = None if step is None else step.flat("kl")
    return () if step is None or kl is None else _largest(step, kl, kl=kl)


@witness("critic_useless", "value_scale", "value_clip_binds")
def largest_errors(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The tokens where V and its target are furthest apart."""
    step = recorded.near(finding.since)
    if step is None:
        return ()
    values = step.flat("values")
    returns = step.flat("returns")
    if values is None or returns is None:
        return ()
    return _largest(step, np.abs(returns - values), V=values, R=returns)


@witness("partial_credit", "over_optimisation")
def best_wrong_answers(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The answers with the highest scores at the end that are not right."""
    step = recorded.near(recorded.all_steps[-1])
    scores = [] if step is None else step.known_rows("score")
    if step is None or not scores:
        return ()
    wrong = [
        row for row, score in enumerate(scores) if score < 1.0 or finding.id != "partial_credit"
    ]
    best = sorted(wrong, key=lambda row: -scores[row])[:_SHOWN]
    return tuple(step.response_place(row, score=scores[row]) for row in best)


@witness("collapse", "mostly_truncated", "length_drift", "constant_reward", "entropy_explosion")
def some_answers(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The first answers of the step, cut-off ones first."""
    step = recorded.near(finding.since)
    if step is None:
        return ()
    cut = step.rows("truncated") or [False] * len(step)
    order = sorted(range(len(step)), key=lambda row: not cut[row])
    return tuple(step.response_place(row) for row in order[:_SHOWN])


def _largest(step: RecordedStep, size: np.ndarray, **columns: np.ndarray) -> tuple[Place, ...]:
    """The valid tokens with the largest sizes."""
    known = np.where(step.mask & np.isfinite(size), size, -np.inf)
    order = [int(at) for at in np.argsort(-known)[:_SHOWN] if known[at] > 0]
    return tuple(
        step.place(at, **{name: float(column[at]) for name, column in columns.items()})
        for at in order
    )
