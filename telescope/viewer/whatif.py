"""What another γ, λ or estimator would have made of recorded responses: same rollout, same critic.

The page computes none of this. It asks here, and the numbers come from telescope.explain, the same
code that checks the record. Whitening takes the responses on the page, not the whole batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from telescope.algorithms.definitions import ESTIMATORS
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
        names: dict[str, Any] = {"estimator": self.estimator}
        if self.gamma is not None:
            names["gamma"] = self.gamma
        if self.lam is not None:
            names |= {"lam": self.lam, "lam_alpha": None, "lam_critic": None}
        return settings.change(**names)


def read_whatif(estimator: str, gamma: str | None, lam: str | None) -> WhatIf:
    """A request's settings, checked."""
    if estimator not in (offer["name"] for offer in estimators()):
        names = ", ".join(offer["name"] for offer in estimators())
        raise TelescopeError(f"no estimator {estimator[:40]!r} can be tried here; use {names}")
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


@functools.cache
def estimators() -> list[dict[str, Any]]:
    """The estimators that can be tried: those that one response's rewards and values are enough for.

    `lam` says whether the estimator has a λ.
    """
    offers = []
    for name, definition in ESTIMATORS.items():
        if definition.from_one_response and definition.needs.critic:
            has_lam = "lam" in definition.settings.model_fields
            offers.append({"name": name, "lam": has_lam})
    return offers


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
    token alone is paid 1, a token's advantage is the weight of the last δ.
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
    return sorted({*GAMMAS, settings.gamma}), sorted({*LAMS, own_lam(settings)})


def own_lam(settings: Settings) -> float:
    """The run's λ setting; GAE's default where its estimator has none."""
    default = Settings.of().credit
    return float(getattr(settings.credit, "lam", getattr(default, "lam", 1.0)))


def choices(settings: Settings) -> Iterator[tuple[str, WhatIf]]:
    """Every what-if of a report, with its key: estimator, index of γ, index of λ (−1: the run's)."""
    gammas, lams = grid(settings)
    for offer in estimators():
        own = [(-1, None)]
        tried = [(i, lam) for i, lam in enumerate(lams) if lam != own_lam(settings)]
        for g, gamma in enumerate(gammas):
            for i, lam in own + tried if offer["lam"] else own:
                yield f"{offer['name']}/{g}/{i}", WhatIf(offer["name"], gamma, lam)
