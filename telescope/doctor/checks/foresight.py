"""What V may not know: the token that is sampled next."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, ledger_sign
from telescope.doctor.curves import Bools, Curves, Floats
from telescope.doctor.recorded import Recorded, RecordedStep


@ledger_sign("values_after_token")
def values_with_surprise(run: Curves, recorded: Recorded) -> Sign | None:
    """V goes with the surprise of a token that is not sampled yet; no two states need be equal.

    In every state the mean of −log π − H over the sampled token is 0. So its product with
    V[i] − V[i−1], which the state alone decides, has the mean 0 too.
    """
    found = [
        (step, known, changes, surprises)
        for step in recorded.steps()
        for known, changes, surprises in [_changes_and_surprises(step)]
        if known.any()
    ]
    products = [changes * surprises for _, _, changes, surprises in found]
    tokens = sum(int(known.sum()) for _, known, _, _ in found)
    if tokens < limits.FORESIGHT_TOKENS:
        return None
    if abs(_errors_from_0([surprises for *_, surprises in found])) > limits.SURPRISE_OFF:
        return None  # these log-probs or entropies are not those of the sampler
    errors = abs(_errors_from_0(products))
    if not errors > limits.FORESIGHT:
        return None
    step, known = found[-1][:2]
    sizes = np.zeros(len(known))
    sizes[known] = np.abs(products[-1])
    return Sign(
        since=found[0][0].step,
        numbers={"errors": errors, "tokens": tokens},
        variant="surprise",
        places=step.largest(sizes, V=step.need("values")),
        confidence=0.85,
    )


def _changes_and_surprises(step: RecordedStep) -> tuple[Bools, Floats, Floats]:
    """Which tokens are known, and of these V[i] − V[i−1] in its σ, and −log π − H.

    The first update may already see another policy than the sampler's: ρ corrects its mean.
    """
    nothing = (np.zeros(len(step.mask), bool), np.zeros(0), np.zeros(0))
    values = step.flat("values")
    entropy = step.flat("entropy")
    sampled = step.flat("rollout_log_probs")
    sampled = step.flat("old_log_probs") if sampled is None else sampled
    terms = step.updates(0, "log_probs")
    if values is None or entropy is None or sampled is None or terms is None:
        return nothing
    logs = terms["log_probs"]
    with np.errstate(over="ignore", invalid="ignore"):
        surprises = np.exp(logs - sampled) * (-logs - entropy)
    changes = np.diff(values, prepend=np.nan)
    is_later = np.diff(step.row_of, prepend=-1) == 0
    after_own = is_later & np.roll(step.mask, 1)
    known = step.mask & after_own & np.isfinite(surprises) & np.isfinite(changes)
    spread = float(changes[known].std()) if known.any() else 0.0
    if spread <= 0:
        return nothing
    return known, changes[known] / spread, surprises[known]


def _errors_from_0(parts: Sequence[Floats]) -> float:
    """How many standard errors the mean lies from 0."""
    numbers = np.concatenate(parts)
    size = math.sqrt(float((numbers**2).sum()))
    return float(numbers.sum()) / size if size else 0.0
