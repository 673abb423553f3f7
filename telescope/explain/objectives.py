"""What a policy loss other than PPO's clip makes of one token: formula, numbers substituted and result, on plain floats.

The same functions on tensors are in telescope.algorithms.surrogates. Each is the objective; the loss is its negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from telescope.explain.arithmetic import clamp, policy_term
from telescope.explain.sample import Settings


@dataclass(frozen=True)
class Token:
    """Token t of a response in one update, and the response's tokens that took part in it."""

    ratio: float
    advantage: float
    log_prob: float
    log_ratio: float
    selected: bool
    log_ratios: Sequence[float]
    advantages: Sequence[float]
    settings: Settings


Worked = tuple[str, dict[str, float], float]
"""Formula, the numbers in it by name, result."""


def _kl_penalty(x: Token) -> Worked:
    value = x.ratio * x.advantage - x.settings.beta * (math.expm1(x.log_ratio) - x.log_ratio)
    return "ρ·Â − β·(ρ − 1 − log ρ)", {"β": x.settings.beta, "log ρ": x.log_ratio}, value


def _gspo(x: Token) -> Worked:
    mean = math.fsum(x.log_ratios) / max(len(x.log_ratios), 1)
    s = math.exp(min(mean, 10.0))
    edge = clamp(s, 1 - x.settings.clip_low, 1 + x.settings.clip_high)
    return (
        "min(s·Â, clip(s)·Â), s = e^(mean log ρ)",
        {"s": s, "clip(s)": edge},
        min(s * x.advantage, edge * x.advantage),
    )


def _cispo(x: Token) -> Worked:
    edge = clamp(x.ratio, 1 - x.settings.clip_low, 1 + x.settings.clip_high)
    return (
        "clip(ρ)·Â·log π",
        {"clip(ρ)": edge, "log π": x.log_prob},
        edge * x.advantage * x.log_prob,
    )


def _sapo(x: Token) -> Worked:
    tau = x.settings.tau_positive if x.advantage > 0 else x.settings.tau_negative
    gate = 4 / tau / (1 + math.exp(-clamp(tau * (x.ratio - 1), -700, 700)))
    return "(4/τ)·sigmoid(τ(ρ − 1))·Â", {"τ": tau}, gate * x.advantage


def _geo_mean(x: Token) -> Worked:
    low, high = -x.settings.clip_low, x.settings.clip_high
    limited = [
        min(r, high) if a > 0 else max(r, low) if a < 0 else 0.0
        for r, a in zip(x.log_ratios, x.advantages, strict=True)
    ]
    n = max(len(limited), 1)
    mean, advantage = math.fsum(limited) / n, math.fsum(x.advantages) / n
    numbers = {"mean c": mean, "mean Â": advantage}
    return (
        "e^(mean c)·mean Â, c = log ρ within its bound",
        numbers,
        math.exp(min(mean, 80.0)) * advantage,
    )


def _clip_cov(x: Token) -> Worked:
    value = 0.0 if x.selected else policy_term(x.ratio, x.advantage, x.settings)[0]
    return (
        ("0: chosen by its covariance" if x.selected else "min(ρ·Â, clip(ρ)·Â): not chosen"),
        {},
        value,
    )


def _kl_cov(x: Token) -> Worked:
    if not x.selected:
        return "ρ·Â: not chosen", {}, x.ratio * x.advantage
    value = x.ratio * x.advantage - x.settings.beta * abs(x.log_ratio)
    return (
        "ρ·Â − β·|log ρ|: chosen by its covariance",
        {"β": x.settings.beta, "log ρ": x.log_ratio},
        value,
    )


def _dppo(x: Token) -> Worked:
    new, old, s = math.exp(x.log_prob), math.exp(x.log_prob - x.log_ratio), x.settings
    distance = abs(new - old)
    if s.loss == "dppo_kl":
        others = math.log(max(1 - old, 1e-10)) - math.log(max(1 - new, 1e-10))
        distance = -old * x.log_ratio + (1 - old) * others
    outside = (
        new > old and distance > s.clip_high
        if x.advantage > 0
        else new < old and distance > s.clip_low
    )
    value = 0.0 if outside else min(x.ratio, s.ratio_cap) * x.advantage * x.log_prob
    formula = "0: outside the trust region" if outside else "min(ρ, cap)·Â·log π"
    return formula, {"divergence": distance, "log π": x.log_prob}, value


def _dro(x: Token) -> Worked:
    value = x.advantage * x.log_prob - x.settings.beta / 2 * x.log_ratio**2
    return (
        "Â·log π − β/2·(log ρ)²",
        {"β": x.settings.beta, "log π": x.log_prob, "log ρ": x.log_ratio},
        value,
    )


OBJECTIVES: dict[str, Callable[[Token], Worked]] = {
    "kl_penalty": _kl_penalty,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
    "geo_mean": _geo_mean,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
    "dppo_tv": _dppo,
    "dppo_kl": _dppo,
    "dro": _dro,
}
