"""What another γ, λ or estimator would have made of recorded responses: same rollout, same critic.

The page computes none of this. It asks here, and the numbers come from telescope.explain, the same
code that checks the record. Whitening takes the responses on the page, not the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from telescope.algorithms.definitions import ESTIMATORS
from telescope.algorithms.definitions.base import Estimator
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import TokenSteps, fill
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.trace import Trace, Tracer
from telescope.explain.whitening import whiten_together

COMPUTED = ("deltas", "baselines", "advantages", "returns", "whitened")
"""Columns that follow from rewards and values, so that a what-if computes them anew."""
SHOWN = ("deltas", "advantages", "returns", "whitened")
"""Columns that the page shows of a what-if."""
TERMS = ("advantage_sum", "advantage", "return", "whitened")
"""Traces that the page shows of a what-if."""
GAMMAS = (0.9, 0.95, 0.99, 1.0)
LAMS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
"""What a report offers besides the run's own γ and λ: it has no server to ask."""
MOST_WEIGHTS = 64
LEAST_WEIGHT = 0.005
"""A ribbon of the fence picture that is thinner than this is not drawn."""


@dataclass(frozen=True)
class WhatIf:
    """The settings to try. None: as in the run."""

    estimator: str
    gamma: float | None = None
    lam: float | None = None

    def of(self, settings: Settings) -> Settings:
        """The run's settings with these in their place."""
        changes: dict[str, Any] = {"estimator": self.estimator}
        if self.gamma is not None:
            changes["gamma"] = self.gamma
        if self.lam is not None:
            changes |= {"lam": self.lam, "lam_alpha": None, "lam_critic": None}
        return settings.change(**changes)


@dataclass(frozen=True)
class Offer:
    """An estimator that can be tried."""

    name: str
    """As a recipe names it; for the user's own one that is file.py:object."""
    label: str
    lam: float | None
    """The λ that it has by itself; None: it has none."""

    @classmethod
    def of(cls, name: str, definition: Estimator) -> Offer:
        field = definition.settings.model_fields.get("lam")
        lam = None if field is None else field.default
        return cls(name, definition.name, lam)


def offers(settings: Settings | None = None) -> list[Offer]:
    """The estimators that can be tried: those for which rewards and values are enough.

    They are the built-in ones, those of installed packages, and the run's own.
    """
    known = {name: ESTIMATORS[name] for name in ESTIMATORS}
    if settings is not None:
        known.setdefault(settings.estimator, settings.estimator_definition)
    return [
        Offer.of(name, definition)
        for name, definition in known.items()
        if definition.needs.critic and definition.from_one_response
    ]


def read_whatif(settings: Settings, estimator: str, gamma: str | None, lam: str | None) -> WhatIf:
    """A request's settings, checked."""
    names = [offer.name for offer in offers(settings)]
    if estimator not in names:
        known = ", ".join(names)
        raise TelescopeError(f"no estimator {estimator[:40]!r} can be tried here; use {known}")
    return WhatIf(estimator, _fraction("gamma", gamma), _fraction("lam", lam))


def _fraction(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise TelescopeError(f"{name} is a number from 0 to 1, not {text[:40]!r}")
    return number


def recompute(samples: Sequence[Sample], whatif: WhatIf) -> list[Sample]:
    """The samples with their credit computed anew, whitened together.

    A sample without rewards or values comes back as it was recorded.
    """
    bare = [_without_credit(sample, whatif) for sample in samples]
    able = [i for i, sample in enumerate(bare) if "advantages" in fill(sample).columns]
    together = whiten_together([bare[i] for i in able]) if able else []
    out = list(samples)
    for i, sample in zip(able, together, strict=True):
        out[i] = fill(sample)
    return out


def _without_credit(sample: Sample, whatif: WhatIf) -> Sample:
    return replace(
        sample,
        columns=_inputs(sample),
        settings=whatif.of(sample.settings),
        whiten_mean=None,
        whiten_std=None,
        actor_updates=[],
        critic_updates=[],
    )


def tracer_of(recomputed: Sample) -> Tracer:
    """Explains a recomputed sample. Its credit is dropped, so that nothing counts as recorded."""
    return Tracer(replace(recomputed, columns=_inputs(recomputed)))


def token_terms(tracer: Tracer, t: int) -> list[Trace]:
    """How the recomputed credit of token t comes about.

    Where A is also a single δ, or all rewards less V, a line says so.
    """
    terms = [trace for trace in tracer.traces(t) if trace.name in TERMS]
    found = next((trace.result for trace in terms if trace.name == "advantage"), None)
    for other in tracer.compare(t, (), ()):
        if found is not None and math.isclose(other.result, found, abs_tol=1e-9):
            terms.append(other)
    return terms


def _inputs(sample: Sample) -> dict[str, list[float]]:
    return {name: column for name, column in sample.columns.items() if name not in COMPUTED}


def delta_weights(full: Sample) -> list[float]:
    """How much of the δ k tokens ahead an advantage holds, for k = 0, 1, …

    Empty where the advantage is not such a sum. Found by trying: where every V is 0 and the last
    token alone has reward 1, a token's advantage is the weight of the last δ.
    """
    steps = TokenSteps(full)
    if not steps.at or not {"deltas", "advantages", "values"} <= full.columns.keys():
        return []
    nothing = [0.0] * len(full)
    paid = list(nothing)
    paid[steps.at[-1]] = 1.0
    tried = replace(
        full,
        columns={"token_level_rewards": paid, "values": nothing},
        bootstrap=0.0,
        actor_updates=[],
        critic_updates=[],
    )
    advantages = fill(tried).columns.get("advantages", nothing)
    weights = [advantages[t] for t in reversed(steps.at)]
    if not all(_is_sum(full, steps, weights, t) for t in (steps.at[0], steps.at[-1])):
        return []
    return list(_worth_drawing(weights))


def _is_sum(full: Sample, steps: TokenSteps, weights: Sequence[float], t: int) -> bool:
    deltas = full.columns["deltas"]
    ahead = steps.onwards(t)
    total = math.fsum(w * deltas[n] for w, n in zip(weights, ahead, strict=False))
    return math.isclose(total, full.columns["advantages"][t], rel_tol=1e-3, abs_tol=1e-4)


def _worth_drawing(weights: Iterable[float]) -> Iterator[float]:
    for k, weight in enumerate(weights):
        if k == MOST_WEIGHTS or (k and abs(weight) < LEAST_WEIGHT):
            return
        yield weight


def grid(settings: Settings) -> tuple[list[float], list[float]]:
    """The γ and the λ that a report offers: the usual ones and the run's own."""
    gammas = {*GAMMAS, settings.gamma}
    lams = {*LAMS}
    if settings.own_lam is not None:
        lams.add(settings.own_lam)
    return sorted(gammas), sorted(lams)


def choices(settings: Settings) -> Iterator[tuple[str, WhatIf]]:
    """Every what-if of a report, with its key.

    A key is the estimator, the index of γ and the index of λ, which is −1 for the λ that the
    estimator has by itself.
    """
    gammas, lams = grid(settings)
    for offer in offers(settings):
        tried: list[tuple[int, float | None]] = [(-1, None)]
        own = settings.own_lam if settings.own_lam is not None else offer.lam
        if offer.lam is not None:
            tried += [(i, lam) for i, lam in enumerate(lams) if lam != own]
        for g, gamma in enumerate(gammas):
            for i, lam in tried:
                yield f"{offer.name}/{g}/{i}", WhatIf(offer.name, gamma, lam)
