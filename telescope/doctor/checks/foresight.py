"""What V may not know: the token that is sampled next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, ledger_sign
from telescope.doctor.curves import Bools, Curves, Floats
from telescope.doctor.recorded import Recorded, RecordedStep


@dataclass(frozen=True)
class _Seen:
    """What one step shows: which tokens are known, and numbers of these tokens."""

    step: RecordedStep
    known: Bools
    changes: Floats
    """V[i] − V[i−1], in units of its σ."""
    surprises: Floats
    """−log π − H."""


@ledger_sign("values_after_token")
def values_with_surprise(run: Curves, recorded: Recorded) -> Sign | None:
    """V goes with the surprise of a token that is not sampled yet; no two states need be equal.

    In every state the mean of −log π − H over the sampled token is 0. So its product with
    V[i] − V[i−1], which the state alone decides, has the mean 0 too.
    """
    found = [seen for seen in map(_look_at, recorded.steps()) if seen is not None]
    tokens = sum(len(seen.surprises) for seen in found)
    if tokens < limits.FORESIGHT_TOKENS:
        return None
    if abs(_errors_from_0([seen.surprises for seen in found])) > limits.SURPRISE_OFF:
        return None  # these log-probs or entropies are not those of the sampler
    products = [seen.changes * seen.surprises for seen in found]
    errors = abs(_errors_from_0(products))
    if not errors > limits.FORESIGHT:
        return None
    last = found[-1]
    sizes = np.zeros(len(last.known))
    sizes[last.known] = np.abs(products[-1])
    return Sign(
        since=found[0].step.step,
        numbers={"errors": errors, "tokens": tokens},
        variant="surprise",
        places=last.step.largest(sizes, V=last.step.need("values")),
        confidence=0.85,
    )


def _look_at(step: RecordedStep) -> _Seen | None:
    """None where a column is missing or V does not change.

    The first update may already see another policy than the sampler's: ρ corrects its mean.
    """
    values = step.flat("values")
    entropy = step.flat("entropy")
    sampled = step.flat("rollout_log_probs")
    sampled = step.flat("old_log_probs") if sampled is None else sampled
    terms = step.updates(0, "log_probs")
    if values is None or entropy is None or sampled is None or terms is None:
        return None
    logs = terms["log_probs"]
    with np.errstate(over="ignore", invalid="ignore"):
        surprises = np.exp(logs - sampled) * (-logs - entropy)
    changes = np.diff(values, prepend=np.nan)
    is_later = np.diff(step.row_of, prepend=-1) == 0
    after_own = is_later & np.roll(step.mask, 1)
    known = step.mask & after_own & np.isfinite(surprises) & np.isfinite(changes)
    spread = float(changes[known].std()) if known.any() else 0.0
    if spread <= 0:
        return None
    return _Seen(step, known, changes[known] / spread, surprises[known])


def _errors_from_0(parts: Sequence[Floats]) -> float:
    """How many standard errors the mean lies from 0."""
    numbers = np.concatenate(parts)
    size = math.sqrt(float((numbers**2).sum()))
    return float(numbers.sum()) / size if size else 0.0
