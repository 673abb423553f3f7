"""Policy losses: PPO's clip, the plain surrogate, and the other losses of the field.

An objective is what the actor maximises for one token; the loss is its negative.
ρ = π/π_old is the ratio, Â the advantage.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, model_validator

from telescope.algorithms.definitions import texts
from telescope.algorithms.definitions.base import (
    Objective,
    PolicyLoss,
    Settings,
    Term,
    UpdatedToken,
    Words,
    clamp,
)
from telescope.algorithms.definitions.notation import num, par, subscript

_LOSSES = "telescope.algorithms.losses"
_SURROGATES = "telescope.algorithms.surrogates"


class ClipRange(Settings):
    """Settings of the losses that clip a ratio."""

    clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio is clipped below 1 − this")
    clip_high: float = Field(0.2, ge=0, description="the ratio is clipped above 1 + this")


class ClipSettings(ClipRange):
    dual_clip: float | None = Field(
        None, gt=1, description="bound the loss of tokens with A < 0 at this × |A|"
    )


Anchor = Literal["old", "sampler"]
_ANCHOR: Any = Field(
    "old",
    description="ρ and the trust region compare π with π_old, or with the sampler's own "
    "probabilities, which corrects for its mismatch too",
)


def on_sampler(s: Any) -> bool:
    """Whether the loss with these settings compares the policy with the sampler's probabilities."""
    return hasattr(s, "anchor") and bool(s.anchor == "sampler")


class CispoSettings(ClipRange):
    anchor: Anchor = _ANCHOR


class KlPenaltySettings(Settings):
    beta: float = Field(1.0, ge=0, description="weight of the penalty for leaving π_old")
    beta_target: float | None = Field(
        None,
        gt=0,
        description="double or halve beta to keep KL(π_old ‖ π) of a training step near this, in "
        "nats per token",
    )


class BetaSettings(Settings):
    beta: float = Field(1.0, ge=0, description="weight of the penalty for leaving π_old")


class SapoSettings(Settings):
    tau_positive: float = Field(1.0, gt=0, description="steepness of the gate where A > 0")
    tau_negative: float = Field(1.05, gt=0, description="steepness of the gate where A < 0")
    ratio_level: Literal["token", "sequence"] = Field(
        "token",
        description="the gate is on ρ of the token, or on e^(mean log ρ) of its response",
    )


class GeoMeanSettings(Settings):
    clip_low: float = Field(0.2, ge=0, lt=1, description="log ρ is not below −this where A < 0")
    clip_high: float = Field(0.2, ge=0, description="log ρ is not above this where A > 0")


class ClipCovSettings(ClipRange):
    cov_share: float = Field(
        0.0002, gt=0, le=1, description="share of the tokens whose gradient is removed"
    )
    cov_low: float = Field(1.0, description="only tokens with a covariance above this")
    cov_high: float = Field(5.0, description="only tokens with a covariance below this")

    @model_validator(mode="after")
    def _check_covariances(self) -> ClipCovSettings:
        if self.cov_low >= self.cov_high:
            raise ValueError(
                f"actor.cov_low = {self.cov_low:g} leaves no covariance below "
                f"actor.cov_high = {self.cov_high:g}"
            )
        return self


class KlCovSettings(BetaSettings):
    cov_share: float = Field(
        0.0002, gt=0, le=1, description="share of the tokens that get the penalty"
    )


class DppoSettings(Settings):
    clip_low: float = Field(0.2, ge=0, lt=1, description="largest divergence where A < 0")
    clip_high: float = Field(0.2, ge=0, description="largest divergence where A > 0")
    ratio_cap: float = Field(20.0, gt=0, description="largest ratio that weighs a token")
    anchor: Anchor = _ANCHOR


# ---- PPO's clip and the plain surrogate ----


def clip_state(ratio: float, a: float, s: Any) -> tuple[float, str]:
    """PPO's clipped objective of one token, and the branch that gave it.

    inside: both branches agree; kept: the ratio is outside, but the unclipped branch is smaller;
    clipped: the clipped branch; dual: bounded by the dual clip. The last two have gradient 0.
    """
    low = 1 - s.clip_low
    high = 1 + s.clip_high
    unclipped = ratio * a
    clipped = clamp(ratio, low, high) * a
    if clipped < unclipped:
        term = clipped
        state = "clipped"
    else:
        term = unclipped
        state = "inside" if low <= ratio <= high else "kept"
    dual_clip = getattr(s, "dual_clip", None)
    if dual_clip is not None and a < 0 and term < dual_clip * a:
        return dual_clip * a, "dual"
    return term, state


def _clip(x: UpdatedToken, s: Any) -> Objective:
    value, state = clip_state(x.ratio, x.advantage, s)
    return Objective(value, clipped=state == "clipped", dual_clipped=state == "dual")


def _surrogate(x: UpdatedToken, s: Any) -> Objective:
    return Objective(x.ratio * x.advantage)


def _clip_term(x: UpdatedToken, s: Any, *, checked: bool) -> Term:
    i = subscript(x.index)
    p = x.ratio
    a = x.advantage
    low = 1 - s.clip_low
    high = 1 + s.clip_high
    value, state = clip_state(p, a, s)
    if a == 0:
        state = "zero"
    edge = clamp(p, low, high)
    formula = f"min(ρ{i}·Â{i}, clip(ρ{i}, {num(low)}, {num(high)})·Â{i})"
    factors = f"min({num(p)}×{par(a)}, {num(edge)}×{par(a)})"
    products = f"min({num(p * a)}, {num(edge * a)})"
    dual_clip: float | None = getattr(s, "dual_clip", None)
    variant = None
    if dual_clip is not None and a < 0:
        variant = "floor"
        bound = num(dual_clip)
        formula = f"max({formula}, {bound}·Â{i})"
        factors = f"max({factors}, {bound}×{par(a)})"
        products = f"max({products}, {num(dual_clip * a)})"
    branches_agree = _close(p * a, edge * a)
    at_the_bound = _close(value, (dual_clip or 0.0) * a)
    return Term(
        "clip",
        f"PPO{i} = {formula}",
        f"{factors} = {products}",
        value,
        [p * a],
        checked=checked,
        state=state,
        variant=variant,
        ties=branches_agree or at_the_bound,
    )


def _surrogate_term(x: UpdatedToken, *, checked: bool) -> Term:
    i = subscript(x.index)
    p = x.ratio
    a = x.advantage
    product = f"{num(p)}×{par(a)}"
    return Term(
        "surrogate", f"TRPO{i} = ρ{i}·Â{i}", product, p * a, [a], checked=checked, state="off"
    )


def _close(x: float, y: float) -> bool:
    return abs(x - y) < 1e-5 * max(1.0, abs(x))


def _clip_terms(x: UpdatedToken, s: Any) -> list[Term]:
    return [_clip_term(x, s, checked=True), _surrogate_term(x, checked=False)]


def _surrogate_terms(x: UpdatedToken, s: Any) -> list[Term]:
    return [_clip_term(x, ClipSettings(), checked=False), _surrogate_term(x, checked=True)]


# ---- the other losses ----


def _kl_penalty(x: UpdatedToken, s: Any) -> Objective:
    value = x.ratio * x.advantage - s.beta * (math.expm1(x.log_ratio) - x.log_ratio)
    numbers = {"β": s.beta, "log ρ": x.log_ratio}
    return Objective(value, formula="ρ·Â − β·(ρ − 1 − log ρ)", numbers=numbers)


def adapt_penalty(beta: float, kl: float, *, target: float) -> float:
    """β/2 if KL < target/1.5, 2β if KL > 1.5·target, else β.

    A KL that is not finite changes nothing. Schulman et al. 2017, arXiv:1707.06347, section 4.
    """
    if not math.isfinite(kl):
        return beta
    if kl < target / 1.5:
        return beta / 2
    if kl > target * 1.5:
        return beta * 2
    return beta


def _adapt(s: Any, kl: float) -> Any:
    if s.beta_target is None:
        return s
    return s.model_copy(update={"beta": adapt_penalty(s.beta, kl, target=s.beta_target)})


def _sequence_ratio(x: UpdatedToken) -> float:
    """e^(mean log ρ) of the response."""
    mean = math.fsum(x.log_ratios) / max(len(x.log_ratios), 1)
    return math.exp(min(mean, 10.0))


def _gspo(x: UpdatedToken, s: Any) -> Objective:
    ratio = _sequence_ratio(x)
    numbers = {"ρ_seq": ratio, "clip(ρ_seq)": clamp(ratio, 1 - s.clip_low, 1 + s.clip_high)}
    formula = "min(ρ_seq·Â, clip(ρ_seq)·Â)"
    if s.dual_clip is not None and x.advantage < 0:
        formula = f"max({formula}, {num(s.dual_clip)}·Â)"
    formula += ", ρ_seq = e^(mean log ρ)"
    return replace(_clip(replace(x, ratio=ratio), s), formula=formula, numbers=numbers)


def _cispo(x: UpdatedToken, s: Any) -> Objective:
    edge = clamp(x.ratio, 1 - s.clip_low, 1 + s.clip_high)
    return Objective(
        edge * x.advantage * x.log_prob,
        clipped=edge != x.ratio,
        formula="clip(ρ)·Â·log π",
        numbers={"clip(ρ)": edge, "log π": x.log_prob},
    )


def _sapo(x: UpdatedToken, s: Any) -> Objective:
    tau = s.tau_positive if x.advantage > 0 else s.tau_negative
    numbers = {"τ": tau}
    name = "ρ"
    ratio = x.ratio
    if s.ratio_level == "sequence":
        name = "ρ_seq"
        ratio = numbers[name] = _sequence_ratio(x)
    gate = 4 / tau / (1 + math.exp(-clamp(tau * (ratio - 1), -700, 700)))
    formula = f"(4/τ)·sigmoid(τ({name} − 1))·Â"
    return Objective(gate * x.advantage, formula=formula, numbers=numbers)


def _limited(log_ratio: float, a: float, low: float, high: float) -> float:
    """log ρ within its bound; 0 where there is no advantage."""
    if a > 0:
        return min(log_ratio, high)
    if a < 0:
        return max(log_ratio, -low)
    return 0.0


def _geo_mean(x: UpdatedToken, s: Any) -> Objective:
    low = s.clip_low
    high = s.clip_high
    pairs = list(zip(x.log_ratios, x.advantages, strict=True))
    count = max(len(pairs), 1)
    mean = math.fsum(_limited(log_ratio, a, low, high) for log_ratio, a in pairs) / count
    advantage = math.fsum(x.advantages) / count
    own = _limited(x.log_ratio, x.advantage, low, high)
    return Objective(
        math.exp(min(mean, 80.0)) * advantage,
        clipped=x.advantage != 0 and own != x.log_ratio,
        formula="e^(mean log ρ, each within its bound)·mean Â",
        numbers={"mean log ρ": mean, "mean Â": advantage},
    )


def _clip_cov(x: UpdatedToken, s: Any) -> Objective:
    if x.selected:
        return Objective(0.0, clipped=True, formula="0: chosen by its covariance")
    return replace(_clip(x, s), formula="min(ρ·Â, clip(ρ)·Â): not chosen")


def _kl_cov(x: UpdatedToken, s: Any) -> Objective:
    if not x.selected:
        return Objective(x.ratio * x.advantage, formula="ρ·Â: not chosen")
    value = x.ratio * x.advantage - s.beta * abs(x.log_ratio)
    numbers = {"β": s.beta, "log ρ": x.log_ratio}
    return Objective(value, formula="ρ·Â − β·|log ρ|: chosen by its covariance", numbers=numbers)


def _dppo(x: UpdatedToken, s: Any, distance: float, new: float, old: float) -> Objective:
    if x.advantage > 0:
        outside = new > old and distance > s.clip_high
    else:
        outside = new < old and distance > s.clip_low
    numbers = {"divergence": distance, "log π": x.log_prob}
    if outside:
        formula = "0: outside the trust region"
        return Objective(0.0, clipped=True, formula=formula, numbers=numbers)
    value = min(x.ratio, s.ratio_cap) * x.advantage * x.log_prob
    return Objective(value, formula="min(ρ, cap)·Â·log π", numbers=numbers)


def _dppo_tv(x: UpdatedToken, s: Any) -> Objective:
    new = math.exp(x.log_prob)
    old = math.exp(x.log_prob - x.log_ratio)
    return _dppo(x, s, abs(new - old), new, old)


def _dppo_kl(x: UpdatedToken, s: Any) -> Objective:
    new = math.exp(x.log_prob)
    old = math.exp(x.log_prob - x.log_ratio)
    others = math.log(max(1 - old, 1e-10)) - math.log(max(1 - new, 1e-10))
    return _dppo(x, s, -old * x.log_ratio + (1 - old) * others, new, old)


def _dro(x: UpdatedToken, s: Any) -> Objective:
    value = x.advantage * x.log_prob - s.beta / 2 * x.log_ratio**2
    numbers = {"β": s.beta, "log π": x.log_prob, "log ρ": x.log_ratio}
    return Objective(value, formula="Â·log π − β/2·(log ρ)²", numbers=numbers)


# ---- the definitions ----


def _surrogate_loss(name: str, **fields: Any) -> PolicyLoss:
    """A loss of telescope.algorithms.surrogates."""
    return PolicyLoss(
        name=name, tensor=f"{_SURROGATES}:{name}_loss", texts=texts.OBJECTIVE, **fields
    )


CLIP = PolicyLoss(
    name="clip",
    verl="compute_policy_loss_vanilla",
    formula="min(ρ·Â, clip(ρ, 1−ε_low, 1+ε_high)·Â)",
    paper="Schulman et al. 2017, arXiv:1707.06347; dual clip: Ye et al. 2020, arXiv:1912.09729",
    tensor=f"{_LOSSES}:clipped_policy_loss",
    settings=ClipSettings,
    objective=_clip,
    terms=_clip_terms,
    words=Words(
        zh="PPO 的裁剪目标：比率超出区间后不再有好处",
        en="PPO's clip: leaving the range of ratios brings nothing more",
    ),
    texts=texts.CLIP,
)

CPI = PolicyLoss(
    name="cpi",
    formula="ρ·Â",
    paper="Kakade & Langford 2002; Schulman et al. 2015, arXiv:1502.05477",
    tensor=f"{_LOSSES}:surrogate_loss",
    objective=_surrogate,
    terms=_surrogate_terms,
    words=Words(zh="不裁剪的代理目标", en="the surrogate of TRPO and CPI, without a clip"),
    texts=texts.UNUSED_CLIP,
)

KL_PENALTY = _surrogate_loss(
    "kl_penalty",
    formula="ρ·Â − β·(ρ − 1 − log ρ)",
    paper="Schulman et al. 2017, arXiv:1707.06347, section 4",
    settings=KlPenaltySettings,
    objective=_kl_penalty,
    adapt=_adapt,
    words=Words(zh="用 KL 惩罚代替裁剪", en="PPO with a KL penalty instead of the clip"),
)

GSPO = _surrogate_loss(
    "gspo",
    verl="compute_policy_loss_gspo",
    formula="min(ρ_seq·Â, clip(ρ_seq)·Â), ρ_seq = e^(mean log ρ) of the response",
    paper="Zheng et al. 2025, arXiv:2507.18071; dual clip: Ye et al. 2020, arXiv:1912.09729",
    settings=ClipSettings,
    objective=_gspo,
    aggregation="seq-mean-token-mean",
    words=Words(zh="按整条回答的比率裁剪", en="PPO's clip on the ratio of the whole response"),
)

CISPO = _surrogate_loss(
    "cispo",
    verl="compute_policy_loss_cispo",
    formula="sg(clip(ρ))·Â·log π",
    paper="MiniMax 2025, arXiv:2506.13585",
    settings=CispoSettings,
    objective=_cispo,
    words=Words(
        zh="裁剪后的比率只作权重，每个 token 都有梯度",
        en="REINFORCE weighed by the clipped ratio; every token keeps its gradient",
    ),
)

SAPO = _surrogate_loss(
    "sapo",
    verl="compute_policy_loss_sapo",
    formula="(4/τ)·sigmoid(τ(ρ − 1))·Â",
    paper="Gao et al. 2025, arXiv:2511.20347",
    settings=SapoSettings,
    objective=_sapo,
    aggregation="seq-mean-token-mean",
    words=Words(zh="用平滑的门代替裁剪", en="a soft gate instead of the clip"),
)

GEO_MEAN = _surrogate_loss(
    "geo_mean",
    verl="compute_policy_loss_geo_mean",
    formula="e^(mean log ρ, each within its bound)·mean Â",
    paper="Zhao et al. 2025, arXiv:2507.20673",
    settings=GeoMeanSettings,
    objective=_geo_mean,
    aggregation="seq-mean-token-mean",
    words=Words(
        zh="比率的几何平均乘以优势的均值",
        en="the geometric mean of the response's ratios times its mean advantage",
    ),
)

CLIP_COV = _surrogate_loss(
    "clip_cov",
    verl="compute_policy_loss_clip_cov",
    formula="PPO's clip; 0 for the chosen tokens",
    paper="Cui et al. 2025, arXiv:2505.22617",
    settings=ClipCovSettings,
    objective=_clip_cov,
    select=f"{_SURROGATES}:select_clip_cov",
    words=Words(
        zh="PPO 裁剪，并去掉使熵下降最快的一些 token 的梯度",
        en="PPO's clip, without the gradient of some tokens that drive the entropy down",
    ),
)

KL_COV = _surrogate_loss(
    "kl_cov",
    verl="compute_policy_loss_kl_cov",
    formula="ρ·Â − β·|log ρ| for the chosen tokens",
    paper="Cui et al. 2025, arXiv:2505.22617",
    settings=KlCovSettings,
    objective=_kl_cov,
    select=f"{_SURROGATES}:select_kl_cov",
    words=Words(
        zh="使熵下降最快的一些 token 另付 KL 惩罚",
        en="the tokens that drive the entropy down most pay a KL penalty",
    ),
)

DPPO_TV = _surrogate_loss(
    "dppo_tv",
    formula="sg(min(ρ, cap))·Â·log π inside the trust region |π − π_old| ≤ ε, else 0",
    paper="Qi et al. 2026, arXiv:2602.04879",
    settings=DppoSettings,
    objective=_dppo_tv,
    words=Words(
        zh="按概率差的大小划定信任域", en="a trust region on the difference of probabilities"
    ),
)

DPPO_KL = _surrogate_loss(
    "dppo_kl",
    formula="sg(min(ρ, cap))·Â·log π inside the trust region KL ≤ ε, else 0",
    paper="Qi et al. 2026, arXiv:2602.04879",
    settings=DppoSettings,
    objective=_dppo_kl,
    words=Words(zh="按 KL 划定信任域", en="a trust region on the KL of «this token or another»"),
)

DRO = _surrogate_loss(
    "dro",
    formula="Â·log π − β/2·(log ρ)²",
    paper="Richemond et al. 2024, arXiv:2405.19107",
    settings=BetaSettings,
    objective=_dro,
    words=Words(
        zh="把 log ρ 回归到 Â/β，异策略的 token 也有用",
        en="regression of log ρ on Â/β, so that off-policy tokens teach too",
    ),
)

POLICY_LOSSES = (
    CLIP,
    CPI,
    KL_PENALTY,
    GSPO,
    CISPO,
    SAPO,
    GEO_MEAN,
    CLIP_COV,
    KL_COV,
    DPPO_TV,
    DPPO_KL,
    DRO,
)
