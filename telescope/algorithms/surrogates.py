"""Policy losses beside PPO's clip and the plain surrogate.

Each returns per-token terms, [B, T] and 0 where the mask is 0. In the formulas,
ρ[i] = π(a_i)/π_old(a_i), A[i] is the advantage, π is short for π(a_i), and sg stops the gradient.

gspo and geo_mean compare whole responses; every micro-batch has whole rows. clip_cov and kl_cov
compare the tokens of a minibatch. Their `selected` tokens are chosen by functions that see the
whole minibatch.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from telescope.algorithms.definitions.policy import adapt_penalty as adapt_penalty
from telescope.algorithms.losses import (
    PolicyTerms,
    clip_ratio,
    clipped_policy_loss,
    fixed,
    policy_terms,
    ratios,
)
from telescope.algorithms.masked import as_bool, keep, masked_mean


def kl_penalty_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, beta: float
) -> PolicyTerms:
    """PPO with a KL penalty in place of the clip.

        L[i] = −ρ[i] A[i] + β·(ρ[i] − 1 − log ρ[i])

    The penalty is an estimate of KL(π_old ‖ π); `adapt_penalty` moves β.
    Schulman et al. 2017, arXiv:1707.06347, section 4.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    kl = torch.expm1(log_ratio) - log_ratio
    loss = -ratio * fixed(advantages, mask) + beta * kl
    return policy_terms(loss, log_ratio, mask)


def gspo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyTerms:
    """PPO's clip on the ratio of the response instead of the token's.

        L[i] = −min(s_i A[i], clip(s_i, 1−ε_low, 1+ε_high) A[i])      s = e^(mean log ρ)

    s_i = sg(s)·π/sg(π): the gradient reaches token i as if s were its own ratio. With `dual_clip` =
    c > 1 the loss is at most −c·A[i] where A[i] < 0, as in `clipped_policy_loss`.
    Zheng et al. 2025, arXiv:2507.18071; dual clip: Ye et al. 2020, arXiv:1912.09729.
    """
    log_ratio, _ = ratios(log_probs, old_log_probs, mask)
    s = _sequence_ratio(log_probs, old_log_probs, mask)
    a = fixed(advantages, mask)
    loss, clipped, dual_clipped = clip_ratio(
        s, a, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    return policy_terms(loss, log_ratio, mask, clipped, dual_clipped)


def _sequence_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """s = e^(mean log ρ) of the response, with the gradient of each token's own ratio, [B, T]."""
    own = keep(log_probs, mask)
    mean = masked_mean(own - keep(old_log_probs, mask), mask, -1)
    mean = mean.detach()[:, None]  # [B, 1]
    return (own - own.detach() + mean).clamp(max=10.0).exp()


def cispo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """REINFORCE weighed by a clipped ratio.

        L[i] = −sg(clip(ρ[i], 1−ε_low, 1+ε_high))·A[i]·log π

    `clipped` is True where the weight was capped; no token loses its gradient.
    MiniMax 2025, arXiv:2506.13585.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    weight = ratio.clamp(1 - clip_low, 1 + clip_high).detach()
    loss = -weight * fixed(advantages, mask) * keep(log_probs, mask)
    return policy_terms(loss, log_ratio, mask, weight != ratio)


def sapo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_positive: float,
    tau_negative: float,
    ratio_level: Literal["token", "sequence"] = "token",
) -> PolicyTerms:
    """A soft gate instead of a clip.

        L[i] = −(4/τ)·sigmoid(τ(ρ[i] − 1))·A[i]

    τ depends on the sign of A[i]. At ρ = 1 the slope is that of the plain surrogate, −A[i]. With
    `ratio_level` sequence, ρ[i] is e^(mean log ρ) of the response, as in `gspo_loss`.
    Gao et al. 2025, arXiv:2511.20347.
    """
    if not (tau_positive > 0 and tau_negative > 0):
        raise ValueError(f"τ must be above 0, not {tau_positive} and {tau_negative}")
    if ratio_level not in ("token", "sequence"):
        raise ValueError(f"unknown ratio_level {ratio_level!r}; use one of token, sequence")
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    if ratio_level == "sequence":
        ratio = _sequence_ratio(log_probs, old_log_probs, mask)
    a = fixed(advantages, mask)
    tau = torch.where(a > 0, tau_positive, tau_negative)
    loss = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * a
    return policy_terms(loss, log_ratio, mask)


def geo_mean_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """The geometric mean of the response's ratios times its mean advantage, on every token of it.

        L[i] = −e^(mean c)·mean(A)

    c is log ρ[i], at most ε_high where A[i] > 0, at least −ε_low where A[i] < 0, and 0 where
    A[i] = 0. Such a token does not count in the ratio: verl's choice; in the paper all tokens of a
    response have the same A. Zhao et al. 2025, arXiv:2507.20673 (GMPO).
    """
    log_ratio, _ = ratios(log_probs, old_log_probs, mask)
    a = fixed(advantages, mask)
    free = keep(log_probs, mask) - keep(old_log_probs, mask).detach()
    limited_below = torch.where(a < 0, free.clamp(min=-clip_low), 0.0)
    limited = torch.where(a > 0, free.clamp(max=clip_high), limited_below)
    # float32 ends at e^88
    ratio = masked_mean(limited, mask, -1).clamp(max=80.0).exp()  # [B]
    loss = -(ratio * masked_mean(a, mask, -1))[:, None].expand_as(a)
    return policy_terms(loss, log_ratio, mask, (limited != free) & (a != 0))


def dppo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    divergence: Literal["tv", "kl"],
    clip_low: float,
    clip_high: float,
    ratio_cap: float,
) -> PolicyTerms:
    """REINFORCE weighed by a capped ratio, inside a trust region.

        L[i] = −sg(min(ρ[i], cap))·A[i]·log π      0 where the step would leave the trust region

    The step would leave it where A[i] > 0, π > π_old and their divergence is above ε_high, or where
    A[i] < 0, π < π_old and the divergence is above ε_low. The divergence is that of two choices,
    this token or any other: tv is |π − π_old|, kl is KL(π_old ‖ π).
    Qi et al. 2026, arXiv:2602.04879.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    a = fixed(advantages, mask)
    new = keep(log_probs, mask).detach().exp()
    old = keep(old_log_probs, mask).detach().exp()
    distance = (new - old).abs()
    if divergence == "kl":
        other_new = (1 - new).clamp(min=1e-10)
        other_old = (1 - old).clamp(min=1e-10)
        distance = -old * log_ratio.detach() + (1 - old) * (other_old.log() - other_new.log())
    too_high = (new > old) & (distance > clip_high)
    too_low = (new < old) & (distance > clip_low)
    outside = torch.where(a > 0, too_high, too_low)
    loss = -ratio.clamp(max=ratio_cap).detach() * a * keep(log_probs, mask)
    return policy_terms(keep(loss, ~outside), log_ratio, mask, outside)


def dro_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, beta: float
) -> PolicyTerms:
    """Regression of log ρ on A/β, which learns from off-policy tokens too.

        L[i] = −A[i]·log π + β/2·(log ρ[i])²

    Richemond et al. 2024, arXiv:2405.19107.
    """
    log_ratio, _ = ratios(log_probs, old_log_probs, mask)
    own = keep(log_probs, mask)
    free = own - keep(old_log_probs, mask).detach()  # log ρ, not clamped
    loss = -fixed(advantages, mask) * own + beta / 2 * free**2
    return policy_terms(loss, log_ratio, mask)


def clip_cov_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    selected: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """PPO's clip, with loss 0 on the `selected` tokens, which drive the entropy down.

    `select_clip_cov` selects them. Cui et al. 2025, arXiv:2505.22617.
    """
    terms = clipped_policy_loss(
        log_probs, old_log_probs, advantages, mask, clip_low=clip_low, clip_high=clip_high
    )
    return replace(
        terms,
        loss=keep(terms.loss, ~as_bool(selected)),
        clipped=terms.clipped | as_bool(selected),
    )


def select_clip_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    cov_share: float,
    cov_low: float,
    cov_high: float,
    clip_low: float,
    clip_high: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Random tokens with cov_low < covariance < cov_high that PPO does not clip, bool [B, T].

    Their number is `cov_share` of all tokens, at least one, if there are so many.
    """
    terms = clipped_policy_loss(
        log_probs, old_log_probs, advantages, mask, clip_low=clip_low, clip_high=clip_high
    )
    cov = covariance(log_probs, advantages, mask)
    possible = (cov > cov_low) & (cov < cov_high) & as_bool(mask) & ~terms.clipped
    candidates = possible.flatten().nonzero().squeeze(1).cpu()
    count = max(int(cov_share * as_bool(mask).sum()), 1)
    shuffled = torch.randperm(len(candidates), generator=generator)
    return _chosen(candidates[shuffled[:count]], mask)


def kl_cov_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    selected: Tensor,
    *,
    beta: float,
) -> PolicyTerms:
    """The plain surrogate, with a penalty on the `selected` tokens.

        L[i] = −ρ[i] A[i] + β·|log ρ[i]|      the penalty only where selected

    `select_kl_cov` selects them. Cui et al. 2025, arXiv:2505.22617.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    penalty = beta * keep(log_ratio.abs(), selected)
    loss = -ratio * fixed(advantages, mask) + penalty
    return policy_terms(loss, log_ratio, mask)


def select_kl_cov(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, cov_share: float
) -> Tensor:
    """The `cov_share` of the tokens (at least one) with the largest covariance, bool [B, T]."""
    total = int(as_bool(mask).sum())
    count = min(max(int(cov_share * total), 1), total)
    cov = covariance(log_probs, advantages, mask).masked_fill(~as_bool(mask), -torch.inf)
    return _chosen(cov.flatten().topk(count).indices, mask)


def covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """A token's part in how fast the entropy falls, [B, T].

        (log π − mean(log π))·(A[i] − mean(A))

    The means are over all valid tokens of the tensor. Cui et al. 2025, arXiv:2505.22617.
    """
    lp = keep(log_probs, mask).detach()
    a = fixed(advantages, mask)
    return keep((lp - masked_mean(lp, mask)) * (a - masked_mean(a, mask)), mask)


def _chosen(index: Tensor, mask: Tensor) -> Tensor:
    """True at these indices of the flattened tensor, in the shape of `mask`."""
    chosen = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
    chosen[index.to(mask.device)] = True
    return chosen.view(mask.shape)


# ---- under the names of their definitions

dppo_tv_loss = functools.partial(dppo_loss, divergence="tv")
dppo_kl_loss = functools.partial(dppo_loss, divergence="kl")
