"""Repeated data and failing tools."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check, ledger_check
from telescope.doctor.curves import Curves, onset
from telescope.doctor.recorded import Recorded, RecordedStep

_CALLS = "response/tool_calls"
_FAILURES = "response/tool_failures"
_LEAST_PROMPTS = 4


@ledger_check(
    "data",
    "warning",
    charts=("reward/score_mean", "eval/sampled_score"),
    settings=("data.files", "data.size", "data.shuffle", "rollout.n"),
)
def repeated_data(run: Curves, recorded: Recorded) -> Sign | None:
    """The same prompts stand in one step several times, or in every step again."""
    steps = recorded.steps()
    per_prompt = run.setting("rollout.n")
    within = [(step.step, _repeated_within(step, per_prompt)) for step in steps]
    over = [
        (step, share) for step, share in within if share is not None and share > limits.REPEATED
    ]
    if len(over) >= 2 and 2 * len(over) > len(steps):
        share = float(np.mean([share for _, share in over]))
        return Sign(since=over[0][0], numbers={"share": share}, confidence=0.85)
    shared = [(later.step, _shared(earlier, later)) for earlier, later in pairwise(steps)]
    stuck = [(step, part) for step, part in shared if part is not None and part > limits.DATA_STUCK]
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
    "data",
    "warning",
    charts=(_FAILURES, _CALLS),
    settings=("rollout.environment", "rollout.tool_seconds", "rollout.corpus"),
)
def failing_tools(run: Curves) -> Sign | None:
    """Many tool calls raise an error or take too long."""
    calls = run.need(_CALLS, least=limits.PERSIST)
    failures = run.need(_FAILURES, least=limits.PERSIST)
    steps = failures.steps
    made = np.maximum(calls.median_at(steps), 1e-9)
    share = np.where(made > limits.TOOLS_UNUSED, failures.running_median() / made, 0.0)
    place = onset(share > limits.TOOL_FAILURES)
    worst = float(share[place : place + limits.PERSIST].mean())
    return Sign(
        since=int(steps[place]),
        numbers={"share": worst},
        severity="serious" if worst > limits.TOOL_FAILURES_SERIOUS else "warning",
        confidence=0.95,
    )


@curve_check(
    "data",
    "warning",
    charts=(_CALLS,),
    settings=("rollout.environment", "data.instruction", "model.path"),
)
def tools_unused(run: Curves) -> Sign | None:
    """There are tools, and the policy does not call them."""
    calls = run.need(_CALLS, least=2 * limits.PERSIST)
    unused = calls.running_median() < limits.TOOLS_UNUSED
    place = onset(unused & ~run.solved(calls.steps), 2 * limits.PERSIST)
    return Sign(since=int(calls.steps[place]), numbers={"calls": float(calls.values[-1])})
