"""Repeated data and failing tools."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from telescope.doctor.check import Sign, curve_check, ledger_check
from telescope.doctor.curves import Curves, onset
from telescope.doctor.recorded import Recorded, RecordedStep
from telescope.doctor.thresholds import (
    DATA_STUCK,
    PERSIST,
    REPEATED,
    SMOOTH,
    TOOL_FAILURES,
    TOOL_FAILURES_SERIOUS,
    TOOLS_UNUSED,
)

_CALLS = "response/tool_calls"
_FAILURES = "response/tool_failures"
_LEAST_PROMPTS = 4


@ledger_check(
    "repeated_data",
    "data",
    "warning",
    charts=("reward/score_mean", "eval/sampled_score"),
    settings=("data.files", "data.size", "data.shuffle", "rollout.n"),
    explains=(
        "overfitting",
        "over_optimisation",
        "collapse",
        "saturated_reward",
        "same_response",
        "partial_credit",
        "lr_too_high",
        "kl_runaway",
        "critic_useless",
    ),
)
def repeated_data(run: Curves, recorded: Recorded) -> Sign | None:
    """The same prompts stand in one step several times, or in every step again."""
    steps = recorded.steps()
    per_prompt = run.setting("rollout.n")
    within = [(step.step, _repeated_within(step, per_prompt)) for step in steps]
    over = [(step, share) for step, share in within if share is not None and share > REPEATED]
    if len(over) >= 2 and 2 * len(over) > len(steps):
        share = float(np.mean([share for _, share in over]))
        return Sign(since=over[0][0], numbers={"share": share}, confidence=0.85)
    shared = [(later.step, _shared(earlier, later)) for earlier, later in pairwise(steps)]
    stuck = [(step, part) for step, part in shared if part is not None and part > DATA_STUCK]
    if len(stuck) >= 2 and len(stuck) >= len(steps) / 2:
        share = float(np.mean([part for _, part in stuck]))
        return Sign(
            since=stuck[0][0],
            numbers={"share": share},
            variant="stuck",
            severity="serious",
            confidence=0.9,
        )
    return None


def _prompts_of(step: RecordedStep) -> list[str]:
    """The prompt of each group."""
    prompts = step.known_rows("prompt")
    own = [str(prompts[rows[0]]) for rows in step.groups.values()] if prompts else []
    by_prompt = not step.known_rows("group")
    return [] if by_prompt or not any(own) or len(own) < _LEAST_PROMPTS else own


def _repeated_within(step: RecordedStep, per_prompt: int | None) -> float | None:
    """Share of a step's prompts that it has too often; `per_prompt` responses are meant."""
    prompts = _prompts_of(step)
    texts = step.known_rows("prompt")
    if per_prompt and any(texts) and len(texts) >= _LEAST_PROMPTS * per_prompt:
        return 1 - len(set(texts)) * per_prompt / len(texts)
    return 1 - len(set(prompts)) / len(prompts) if prompts else None


def _shared(earlier: RecordedStep, later: RecordedStep) -> float | None:
    """Share of the later step's prompts that were in the earlier one."""
    first = set(_prompts_of(earlier))
    then = set(_prompts_of(later))
    return len(first & then) / len(then) if first and then else None


@curve_check(
    "failing_tools",
    "data",
    "warning",
    charts=(_FAILURES, _CALLS),
    settings=("rollout.environment", "rollout.tool_seconds", "rollout.corpus"),
    explains=("tools_unused", "length_drift", "constant_reward", "flat_groups", "mostly_truncated"),
)
def failing_tools(run: Curves) -> Sign | None:
    """Many tool calls raise an error or take too long."""
    calls = run.get(_CALLS, least=PERSIST)
    failures = run.get(_FAILURES, least=PERSIST)
    if calls is None or failures is None:
        return None
    steps = failures.steps
    made = np.maximum(calls.at(steps, calls.trail(SMOOTH)), 1e-9)
    share = np.where(made > TOOLS_UNUSED, failures.trail(SMOOTH) / made, 0.0)
    place = onset(share > TOOL_FAILURES, PERSIST)
    if place is None:
        return None
    worst = float(share[place : place + PERSIST].mean())
    return Sign(
        since=int(steps[place]),
        numbers={"share": worst},
        severity="serious" if worst > TOOL_FAILURES_SERIOUS else "warning",
        confidence=0.95,
    )


@curve_check(
    "tools_unused",
    "data",
    "warning",
    charts=(_CALLS,),
    settings=("rollout.environment", "data.instruction", "model.path"),
    explains=(),
)
def tools_unused(run: Curves) -> Sign | None:
    """There are tools, and the policy does not call them."""
    calls = run.get(_CALLS, least=2 * PERSIST)
    if calls is None:
        return None
    place = onset((calls.trail(SMOOTH) < TOOLS_UNUSED) & ~run.solved(calls.steps), 2 * PERSIST)
    if place is None:
        return None
    return Sign(since=int(calls.steps[place]), numbers={"calls": float(calls.values[-1])})
