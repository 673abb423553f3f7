"""Estimates of KL(π ‖ π_ref) from one sampled token, d = log π(a) − log π_ref(a)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from telescope.algorithms.definitions.base import clamp
from telescope.algorithms.definitions.notation import less, num


@dataclass(frozen=True)
class KlEstimate:
    """One estimate; telescope.algorithms.kl_penalty has the same on tensors."""

    name: str
    scalar: Callable[[float], float]
    shape: str
    """The formula, with {} for d."""
    aliases: tuple[str, ...] = ()
    variant: str | None = None
    """Chooses the words of its term."""

    def texts(self, name: str, log_prob: float, ref: float) -> tuple[str, str]:
        """The formula of d = `name`, and the same with its numbers."""
        return self.shape.format(name), self.shape.format(less(log_prob, ref))


class _K3(KlEstimate):
    def texts(self, name: str, log_prob: float, ref: float) -> tuple[str, str]:
        d = log_prob - ref
        size = num(abs(d))
        filled = f"e^({size}) − {size} − 1" if d < 0 else f"e^(−{size}) + {size} − 1"
        formula = f"min(10, e^(−d) + d − 1) [d = {name}]"
        return formula, f"min(10, {filled}) [d = {less(log_prob, ref)} = {num(d)}]"


def _k3(d: float) -> float:
    d = clamp(d, -20.0, 20.0)
    return clamp(math.expm1(-d) + d, 0.0, 10.0)


_ALL = (
    KlEstimate("k1", lambda d: d, "{}", aliases=("kl",)),
    KlEstimate("abs", abs, "|{}|", variant="abs"),
    KlEstimate("k2", lambda d: 0.5 * d * d, "½·({})²", aliases=("mse",), variant="k2"),
    _K3("k3", _k3, "", aliases=("low_var_kl",), variant="k3"),
)

KL_ESTIMATES = {name: estimate for estimate in _ALL for name in (estimate.name, *estimate.aliases)}
"""By name and by other name."""

NAMES = tuple(estimate.name for estimate in _ALL)


def kl_estimate(kind: str) -> KlEstimate:
    """The estimate of that name; a trailing + changes its gradient only, not its value."""
    found = KL_ESTIMATES.get(kind.removesuffix("+"))
    if found is None:
        raise ValueError(
            f"unknown KL kind {kind!r}; use one of {', '.join(NAMES)} "
            "(verl's names: kl = k1, mse = k2, low_var_kl = k3)"
        )
    return found
