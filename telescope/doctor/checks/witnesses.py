"""Tokens and responses that show what the curves found."""

from __future__ import annotations

import numpy as np

from telescope.doctor.check import witness
from telescope.doctor.finding import Finding, Place
from telescope.doctor.recorded import SHOWN, Recorded


@witness("lr_too_high", "grad_spike")
def largest_ratios(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The tokens whose probability one training step changed most."""
    step = recorded.near(finding.since)
    terms = step.updates(-1, "old_log_probs", "log_probs")
    if terms is None:
        return ()
    moved = terms["log_probs"] - terms["old_log_probs"]
    return step.largest(np.abs(moved), ratio=np.exp(np.clip(moved, -50, 50)))


@witness("kl_runaway")
def largest_kl(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The tokens that are furthest from the reference."""
    step = recorded.near(finding.since)
    kl = step.need("kl")
    return step.largest(kl, kl=kl)


@witness("critic_useless", "value_scale", "value_clip_binds")
def largest_errors(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The tokens where V and its target are furthest apart."""
    step = recorded.near(finding.since)
    values = step.need("values")
    returns = step.need("returns")
    return step.largest(np.abs(returns - values), V=values, R=returns)


@witness("partial_credit", "over_optimisation")
def best_wrong_answers(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The answers with the highest scores at the end that are not right."""
    step = recorded.near(recorded.all_steps[-1])
    scores = step.known_rows("score")
    best = sorted(range(len(scores)), key=lambda row: -scores[row])
    wrong = [row for row in best if scores[row] < 1.0 or finding.id != "partial_credit"]
    return tuple(step.response_place(row, score=scores[row]) for row in wrong[:SHOWN])


@witness("collapse", "mostly_truncated", "length_drift", "constant_reward", "entropy_explosion")
def some_answers(finding: Finding, recorded: Recorded) -> tuple[Place, ...]:
    """The first answers of the step, cut-off ones first."""
    step = recorded.near(finding.since)
    cut = step.rows("truncated") or [False] * len(step)
    return step.response_places(sorted(range(len(step)), key=lambda row: not cut[row]))
