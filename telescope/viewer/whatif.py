"""What another γ, λ, estimator or loss would have made of a step: same rollout, same critic.

Every recorded response is computed anew, by the arithmetic of the definitions. Whitening takes all
of them, scaled so that the recorded setting gives the recorded Â:

    μ' = μ + (μ_s' − μ_s)      σ' = σ·σ_s'/σ_s

μ and σ are the batch's as recorded, μ_s and σ_s those of the recorded responses as recorded, and
μ_s' and σ_s' those of the recorded responses under the what-if.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from telescope.algorithms.definitions.base import Actions
from telescope.algorithms.definitions.critic import DELTAS
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill, moments
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.explain.trace import Trace, Tracer
from telescope.viewer.columns import packed
from telescope.viewer.delta_weights import weights_of
from telescope.viewer.offers import loss_offers, offers
from telescope.viewer.payload import number_of
from telescope.viewer.policy_terms import policy_columns
from telescope.viewer.recorded import Floats, RecordedStep

COMPUTED = ("deltas", "baselines", "advantages", "returns", "whitened")
"""Columns that follow from rewards and values, so that a what-if computes them anew."""
TERMS = ("advantage_sum", "advantage", "return", "whitened")
"""Traces that the page shows of a what-if."""


@dataclass(frozen=True)
class WhatIf:
    """The settings to try. None: as in the run."""

    estimator: str | None = None
    loss: str | None = None
    whiten: bool | None = None
    settings: tuple[tuple[str, float | None], ...] = ()
    """γ and the estimator's own settings by name."""

    @classmethod
    def of_names(cls, estimator: str | None = None, **settings: Any) -> WhatIf:
        """`WhatIf.of_names("gae", gamma=0.9, lam=0.8)`"""
        loss = settings.pop("loss", None)
        whiten = settings.pop("whiten", None)
        return cls(estimator, loss, whiten, tuple(sorted(settings.items())))

    def of(self, recorded: Settings) -> Settings:
        """The run's settings with these in their place.

        A λ that is given replaces one that depends on the length. Whitening that the run left to
        its estimator is left to the new one.
        """
        changes: dict[str, Any] = dict(self.settings)
        if "lam" in changes:
            changes.setdefault("lam_alpha", None)
        if self.loss is not None:
            changes["loss"] = self.loss
        if self.estimator is not None:
            changes["estimator"] = self.estimator
        made = recorded.change(**changes)
        own = recorded.estimator_definition.whiten
        whiten = recorded.whiten
        if self.whiten is not None:
            whiten = self.whiten
        elif whiten == own:
            whiten = made.estimator_definition.whiten
        return made.change(whiten=whiten)


def read_whatif(step: RecordedStep, query: Mapping[str, str]) -> WhatIf:
    """A request's settings, checked."""
    estimator = _known(query.get("estimator"), offers(step), "estimator")
    loss = _known(query.get("loss"), loss_offers(step), "loss")
    whiten = {"0": False, "1": True}.get(query.get("whiten", ""))
    others = {k: v for k, v in query.items() if k not in ("estimator", "loss", "whiten")}
    settings = {name: _number(name, text) for name, text in others.items()}
    whatif = WhatIf(estimator, loss, whiten, tuple(sorted(settings.items())))
    _check(whatif, step.settings)
    return whatif


def _known(name: str | None, known: Iterable[Any], what: str) -> str | None:
    if name is None:
        return None
    offered = {offer.name: offer for offer in known}
    if name not in offered:
        raise TelescopeError(f"no {what} {name[:40]!r}; use {', '.join(offered)}")
    if offered[name].why_not is not None:
        raise TelescopeError(f"{name[:40]} cannot be tried here: {offered[name].why_not.en}")
    return name


def _number(name: str, text: str) -> float | None:
    if text == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise TelescopeError(f"{name[:40]} is a number, not {text[:40]!r}")
    return int(number) if number.is_integer() else number


def _check(whatif: WhatIf, recorded: Settings) -> None:
    """Raises an error where a setting does not exist, or its value is out of range."""
    try:
        made = whatif.of(recorded)
    except (ValidationError, ValueError) as error:
        problems = error.errors() if isinstance(error, ValidationError) else []
        first = f"{problems[0]['loc'][0]}: {problems[0]['msg']}" if problems else str(error)
        raise TelescopeError(first[:200]) from None
    for name, _ in whatif.settings:
        if name not in type(made.credit).model_fields:
            raise TelescopeError(f"{made.estimator} has no setting {name[:40]!r}")


# ---- all responses of a step ----


@dataclass(frozen=True)
class Recomputed:
    """The credit of every response of a step under a what-if."""

    step: RecordedStep
    settings: Settings
    columns: Mapping[str, Floats]
    """Flat columns, 0 where the policy did not write the token."""
    scale: Sequence[float | None]
    """What each response's difference is divided by, without a critic."""
    mean: float
    std: float

    def to_json(self) -> dict[str, Any]:
        """What the page gets."""
        settings = self.settings
        return {
            "count": len(self.step),
            "offsets": self.step.offsets,
            "columns": {name: packed(column) for name, column in self.columns.items()},
            "scale": [number_of(x, 9) for x in self.scale],
            "whiten": {
                "on": settings.whiten,
                "mean": number_of(self.mean, 9),
                "std": number_of(self.std, 9),
            },
            "weights": [self.weights(row) for row in range(len(self.step))],
            "settings": {
                "estimator": settings.estimator,
                "label": settings.estimator_definition.name,
                "gamma": settings.gamma,
                "lam": settings.own_lam,
                "loss": settings.loss,
            },
        }

    def weights(self, row: int) -> list[float]:
        """How much of the δ k tokens ahead an advantage of the response holds, for k = 0, 1, …"""
        at = self.step.at[row]
        if "deltas" not in self.columns:
            return []
        deltas = self.columns["deltas"][at].tolist()
        advantages = self.columns["advantages"][at].tolist()
        return weights_of(deltas, advantages, self.settings)


def recompute(step: RecordedStep, whatif: WhatIf) -> Recomputed:
    """Every response's credit, computed anew."""
    settings = whatif.of(step.settings)
    responses = step.responses()
    definition = settings.estimator_definition
    if step.has_critic:
        for response in responses:
            DELTAS.apply(response, settings)
    for rows in step.groups.values():
        definition.fill_group([responses[row] for row in rows], settings.credit)
    made = [
        name
        for name in COMPUTED
        if responses and all(name in response for response in responses if len(response))
    ]
    columns = {
        name: step.flat([_column(response, name) for response in responses]) for name in made
    }
    if "advantages" not in columns:
        raise TelescopeError(f"{settings.estimator} gives no advantages from what was recorded")
    mean, std = whitening(step, columns["advantages"], whiten=settings.whiten)
    columns["whitened"] = np.where(step.mask, (columns["advantages"] - mean) / std, 0.0)
    if whatif.loss is not None:
        columns |= policy_columns(step, settings, columns["whitened"])
    scale = [response.scale for response in responses]
    return Recomputed(step, settings, columns, scale, mean, std)


def _column(response: Actions, name: str) -> list[float]:
    return response[name] if len(response) else []


def whitening(step: RecordedStep, advantages: Floats, *, whiten: bool) -> tuple[float, float]:
    """The μ and σ of a what-if: those of the batch, moved as the recorded responses moved."""
    if not whiten:
        return 0.0, 1.0
    mean, std = moments(step.written(advantages))
    before = step.column("advantages")
    batch_mean, batch_std = step.batch_moments
    if not step.settings.whiten or before is None or batch_mean is None or not batch_std:
        return mean, std
    old_mean, old_std = moments(step.written(before))
    return batch_mean + (mean - old_mean), batch_std * std / old_std


# ---- one response ----


def sample_of(recomputed: Recomputed, sample: Sample, row: int) -> Sample:
    """The sample at `row` of the step with its credit under the what-if."""
    start, end = recomputed.step.offsets[row : row + 2]
    columns = {name: column for name, column in sample.columns.items() if name not in COMPUTED}
    own = {name: column[start:end].tolist() for name, column in recomputed.columns.items()}
    return replace(
        sample,
        columns=columns | {name: own[name] for name in COMPUTED if name in own},
        settings=recomputed.settings,
        scale=recomputed.scale[row],
        whiten_mean=recomputed.mean if recomputed.settings.whiten else None,
        whiten_std=recomputed.std if recomputed.settings.whiten else None,
        actor_updates=[],
        critic_updates=[],
    )


def tracer_of(recomputed: Sample) -> Tracer:
    """Explains a recomputed sample: what can be computed again is not taken as recorded."""
    kept = dict(recomputed.columns)
    for name in reversed(COMPUTED):
        fewer = {other: column for other, column in kept.items() if other != name}
        if name in fill(replace(recomputed, columns=fewer)).columns:
            kept = fewer
    return Tracer(replace(recomputed, columns=kept))


def token_terms(tracer: Tracer, t: int) -> list[Trace]:
    """How the recomputed credit of token t comes about.

    Where A is also a single δ, or all rewards less V, a line says so.
    """
    terms = [trace for trace in tracer.traces(t) if trace.name in TERMS]
    found = next((trace.result for trace in terms if trace.name == "advantage"), None)
    if not tracer.sample.settings.estimator_definition.needs.critic:
        return terms
    for other in tracer.compare(t, (), ()):
        if found is not None and math.isclose(other.result, found, abs_tol=1e-9):
            terms.append(other)
    return terms
