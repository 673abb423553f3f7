"""Settings that a trainer did not say: found in its numbers, or assumed and marked as such."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from telescope.algorithms.definitions.kl import NAMES
from telescope.explain.settings import UNKNOWN, Settings
from telescope.peers.rows import Array, WatchedStep
from telescope.peers.rules import Rule, estimated_kls, raw_rows, same
from telescope.peers.words import said

LEAST = 8
"""Tokens from which γ and λ can be told."""


def settings_of(given: Mapping[str, Any], watched: WatchedStep) -> tuple[Settings, list[str]]:
    """The settings of a step, and the names of those that are assumed."""
    known = {name: value for name, value in given.items() if value is not None}
    columns = watched.columns
    if "estimator" not in known:
        known["estimator"] = "gae" if "values" in columns else UNKNOWN
    is_whitening_known = "whiten" in known or "whitened" in columns
    if not is_whitening_known or ("whiten" not in known and _is_raw(watched)):
        known["whiten"] = False
    if "kl_coef" not in known:
        known |= _beta(watched, known.get("kl_kind"))
    if not {"gamma", "lam"} <= known.keys() and known["estimator"] == "gae":
        known = _gamma_and_lam(watched, known) | known
    used = ["kl_coef", "gamma"] + ["lam"] * (known["estimator"] == "gae")
    if watched.log_probs is not None and "loss" not in known:
        used.append("clip_low")
    assumed = [name for name in used if name not in known]
    settings = Settings.of(**known)
    whitens = settings.estimator == UNKNOWN or settings.estimator_definition.whiten
    if not is_whitening_known and whitens and {"advantages", "values"} & columns.keys():
        assumed.append("whiten")
    return settings, assumed


def assumed_rule(assumed: Iterable[str], settings: Settings) -> list[Rule]:
    """Said where a number does not agree: the settings may be others."""
    values = settings.by_name()
    numbers = [name for name in assumed if name in ("kl_coef", "gamma", "lam")]
    listed = ", ".join(f"{name} {values[name]:g}" for name in numbers)
    return [said("assumed", settings=listed)] if listed else []


def _is_raw(watched: WatchedStep) -> bool:
    """Whether the advantages that were used are the raw ones."""
    used, raw = watched.flat("whitened"), raw_rows(watched)
    return used is not None and raw is not None and same(np.concatenate(raw), used)


def _beta(watched: WatchedStep, kind: str | None) -> dict[str, Any]:
    """β, and which KL it multiplies, if rewards are the scores less β·KL."""
    scores, rewards = watched.flat("token_level_scores"), watched.flat("token_level_rewards")
    if scores is None or rewards is None or not len(scores):
        return {}
    cost = scores - rewards
    if same(cost, np.zeros_like(cost), tight=True):
        return {"kl_coef": 0.0}
    for name, kl in _kls(watched, kind):
        squares = float(kl @ kl)
        beta = float(kl @ cost) / squares if squares > 0 else 0.0
        if beta > 0 and same(beta * kl, cost, tight=True):
            return {"kl_coef": _rounded(beta, kl, cost), **({"kl_kind": name} if name else {})}
    return {}


def _kls(watched: WatchedStep, kind: str | None) -> Iterator[tuple[str | None, Array]]:
    yield from estimated_kls(watched, (kind,) if kind else NAMES)
    kl = watched.flat("kl")
    if kl is not None:
        yield kind, kl


def _rounded(beta: float, kl: Array, cost: Array) -> float:
    """β with as few digits as the numbers allow."""
    shorter = (float(f"{beta:.{digits}g}") for digits in range(1, 7))
    return next((b for b in shorter if same(b * kl, cost, tight=True)), beta)


def _gamma_and_lam(watched: WatchedStep, known: Mapping[str, Any]) -> dict[str, Any]:
    """γ and λ from A[t] − r[t] + V[t] = γ·V[t⁺] + γλ·A[t⁺], where every token fits."""
    advantages = raw_rows(watched)
    rewards, values = watched.written("token_level_rewards"), watched.written("values")
    if advantages is None or rewards is None or values is None:
        return {}
    left = [a[:-1] - r[:-1] + v[:-1] for a, r, v in zip(advantages, rewards, values, strict=True)]
    right = [np.stack([v[1:], a[1:]], 1) for a, v in zip(advantages, values, strict=True)]
    y, x = np.concatenate(left), np.concatenate(right)
    if len(y) < LEAST or not np.isfinite(x).all() or not np.isfinite(y).all():
        return {}
    if np.linalg.matrix_rank(x, tol=1e-3) < 2:
        return {}
    (gamma, decay), *_ = np.linalg.lstsq(x, y, rcond=None)
    for digits in (2, 3, 4, 6):
        g = float(known.get("gamma", round(float(gamma), digits)))
        lam = float(known.get("lam", round(float(decay) / g, digits) if g > 0 else -1.0))
        if 0 <= g <= 1 and 0 <= lam <= 1 and same(x @ np.array([g, g * lam]), y, tight=True):
            return {"gamma": g, "lam": lam}
    return {}
