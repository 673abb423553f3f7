"""Laws of the policies: π_old is the policy before the update, and the reference its start."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, curve_check, first_step, ledger_check, ledger_sign
from telescope.doctor.curves import Curves, Floats, find_onset
from telescope.doctor.recorded import Recorded, RecordedStep, State

_PREFIX = 16
"""Tokens of an answer whose log-probs are compared."""
Ints = npt.NDArray[np.int_]
_NO_GAINS = (np.zeros(0), np.zeros(0, int))
Visit = tuple[RecordedStep, int, float]
"""Step, place in its flat columns, and the number there."""


@ledger_check(
    "laws",
    "serious",
    charts=("actor/approx_kl", "rollout/logprob_diff"),
    settings=("actor.old_log_probs", "rollout.temperature", "model.dtype"),
)
@first_step
def first_ratio(run: Curves, step: RecordedStep) -> Sign | None:
    """In the first minibatch of a step the policy is still the old one: ρ must be 1."""
    local = run.setting("rollout.engine") == "torch" and run.setting("backend") == "local"
    exact = local and run.setting("model.dtype") == "float32"
    terms = step.updates(0, "old_log_probs", "log_probs")
    first = step.first_minibatch()
    if terms is None or first is None:
        return None
    logs = terms["log_probs"] - terms["old_log_probs"]
    rollout = step.flat("old_log_probs")
    if exact and rollout is not None:  # what the step began with
        logs = np.where(np.isfinite(rollout), terms["log_probs"] - rollout, logs)
    at = step.mask & first[step.row_of]
    apart = float(np.abs(logs[at]).mean()) if at.any() else 0.0
    if not apart > (limits.FIRST_RATIO_EXACT if exact else limits.FIRST_RATIO):
        return None
    worst = int(np.where(at, np.abs(logs), 0.0).argmax())
    ratio = float(np.exp(logs[worst]))
    return Sign(
        since=step.step,
        numbers={"apart": apart, "ratio": ratio},
        places=(step.place(worst, ratio=ratio),),
        confidence=0.9,
    )


@ledger_check(
    "laws", "serious", charts=("actor/pg_loss", "reward/score_mean"), settings=("actor.loss",)
)
def update_backwards(run: Curves, recorded: Recorded) -> Sign | None:
    """Updates lower the probability of tokens with positive advantages, and raise the others.

    Of each answer Σ Â·log ρ after an update; its mean over answers must not be negative.
    """
    found: list[tuple[RecordedStep, float]] = []
    for step in recorded.steps():
        gains, kinds = _gains(step)
        error = _error(gains, kinds)
        if _independent(kinds) >= limits.BACKWARDS_ROWS and error > 0:
            found.append((step, float(gains.mean()) / error))
            z = sum(each for _, each in found) / math.sqrt(len(found))
            if len(found) >= limits.BACKWARDS_STEPS and z < -limits.BACKWARDS:
                numbers = {"errors": -z, "steps": len(found)}
                return Sign(since=found[0][0].step, numbers=numbers, confidence=0.85)
    return None


def _independent(kinds: Ints) -> float:
    """How many answers there are, where equal ones count as one: (Σ n)²/Σ n²."""
    counts = np.bincount(kinds)
    return float(counts.sum() ** 2 / max((counts**2).sum(), 1))


def _error(gains: Floats, kinds: Ints) -> float:
    """The standard error of the mean gain, with the gains of equal answers as one number."""
    if len(set(kinds)) < 2:
        return 0.0
    apart = np.bincount(kinds, gains - gains.mean())
    unbiased = len(apart) / (len(apart) - 1)
    return math.sqrt(unbiased * float((apart**2).sum())) / len(gains)


def _gains(step: RecordedStep) -> tuple[Floats, Ints]:
    """Σ Â·log ρ of each answer that was seen after an update of this step; none if it went far.

    And which answers are equal: the same tokens to the same prompt.
    """
    terms = step.updates(-1, "old_log_probs", "log_probs")
    used = step.flat("whitened")
    first = step.first_minibatch()
    if terms is None or used is None or first is None:
        return _NO_GAINS
    moved = np.where(step.mask, terms["log_probs"] - terms["old_log_probs"], 0.0)
    later = np.array([len(each) > 1 for each in step.rows("actor_updates")]) | ~first
    rows = [row for row, (start, end) in enumerate(step.spans()) if later[row] and end > start]
    spans = list(step.spans())
    if not rows or float(np.abs(moved[later[step.row_of]]).mean()) > limits.BACKWARDS_FAR:
        return _NO_GAINS
    gain = np.where(step.mask, used, 0.0) * moved
    prompts = step.known_rows("prompt") or [""] * len(step)
    answers = [(prompts[row], *step.rows("responses")[row]) for row in rows]
    numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
    kinds = np.array([numbers[answer] for answer in answers])
    return np.array([gain[slice(*spans[row])].sum() for row in rows]), kinds


@curve_check("laws", "serious", charts=("reward/kl",), settings=("model.path",))
def other_reference(run: Curves) -> Sign | None:
    """Before the first update the policy is the reference: their KL must be 0."""
    kl = run.need("reward/kl")
    is_own = run.setting("model.path") is not None  # others may log a mean over the first updates
    least = limits.OTHER_REFERENCE_OWN if is_own else limits.OTHER_REFERENCE
    if kl.steps[0] > 1 or abs(kl.values[0]) < least:
        return None
    chosen = run.setting("model.reference_path")
    return Sign(
        since=int(kl.steps[0]),
        numbers={"kl": float(kl.values[0]), "path": chosen},
        severity="warning" if chosen and kl.values[0] < limits.KL_FAR_UNLEARNED else "serious",
        variant="chosen" if chosen else "",
        confidence=0.9,
    )


@curve_check(
    "laws", "warning", charts=("actor/approx_kl", "reward/kl"), settings=("actor.old_log_probs",)
)
def ratio_stuck(run: Curves) -> Sign | None:
    """Later updates of a step move away from π_old, but the ratio stays 1."""
    moved = run.need("actor/approx_kl", least=2 * limits.PERSIST)
    kl = run.need("reward/kl", least=2 * limits.PERSIST)
    updates = (run.setting("actor.epochs") or 1) * (run.setting("actor.minibatches") or 1)
    has_moved = find_onset(np.abs(kl.running_median()) > limits.KL_PINNED) is not None
    if updates < 2 or float(moved.values.max()) > limits.RATIO_ONE or not has_moved:
        return None
    return Sign(
        since=int(moved.steps[0]),
        numbers={"updates": updates, "kl": float(kl.values[-1])},
        confidence=0.9,
    )


@curve_check(
    "laws", "serious", charts=("reward/kl", "actor/approx_kl"), settings=("model.reference_path",)
)
def reference_moves(run: Curves) -> Sign | None:
    """The policy moves, and its KL to the reference stays exactly 0: the two are one model."""
    kl = run.need("reward/kl", least=2 * limits.PERSIST)
    moved = run.need("actor/approx_kl", least=2 * limits.PERSIST)
    if float(np.abs(kl.values).max()) > limits.RATIO_ONE:
        return None
    total = float(moved.values[:-1].sum())
    if total < limits.KL_PINNED:
        return None
    return Sign(since=int(kl.steps[0]), numbers={"moved": total}, confidence=0.9)


@ledger_sign("reference_moves")
def reference_of_equals(run: Curves, recorded: Recorded) -> Sign | None:
    """The reference gives the same answer to the same prompt another log-prob at another step."""
    seen: dict[State, Visit] = {}
    pairs: list[tuple[Visit, Visit]] = []
    for step in recorded.steps():
        logs = step.flat("ref_log_prob")
        if logs is None or not any(step.known_rows("prompt")):
            continue
        for state, at in step.states(_PREFIX):
            now = (step, at, float(logs[at]))
            before = seen.setdefault(state, now)
            known = step.mask[at] and math.isfinite(now[2] - before[2])
            if known and before[0] is not step:
                pairs.append((before, now))
    apart = [abs(now[2] - before[2]) for before, now in pairs]
    if len(pairs) < limits.EQUALS_LEAST or np.mean(apart) < limits.MISMATCH:
        return None
    worst = pairs[int(np.argmax(apart))]
    return Sign(
        since=recorded.chosen[0],
        numbers={"apart": float(np.mean(apart)), "worst": max(apart)},
        variant="equals",
        places=tuple(step.place(at, ref_log_prob=value) for step, at, value in worst),
        confidence=0.85,
    )
