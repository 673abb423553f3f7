"""Policy losses of the field beside PPO's clip and the plain surrogate; each returns per-token terms, [B, T] and 0 off the mask.

Losses that compare a whole response (gspo, geo_mean) need its whole row at once, which every micro-batch has. Those that compare the
tokens of a minibatch (clip_cov, kl_cov) are told which of them were `selected`, by functions that see the whole minibatch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from telescope.algorithms.definitions.policy import adapt_penalty as adapt_penalty
from telescope.algorithms.losses import PolicyTerms, clipped_policy_loss, ratios
from telescope.algorithms.masked import as_bool, keep, masked_mean


def kl_penalty_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, beta: float
) -> PolicyTerms:
    """PPO with a penalty in place of the clip: −ρ_t A_t + β·(ρ_t − 1 − log ρ_t), the last an estimate of KL(π_old ‖ π).

    Schulman et al. 2017, arXiv:1707.06347, section 4; `adapt_penalty` moves β.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    return _terms(
        -ratio * _fixed(advantages, mask) + beta * (torch.expm1(log_ratio) - log_ratio),
        log_ratio,
        mask,
    )


def gspo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """PPO's clip on the response's ratio s = e^(mean log ρ) instead of the token's: −min(s A_t, clip(s) A_t).

    The gradient reaches token t as if s were its own ratio: s_t = sg(s)·π/sg(π). Zheng et al. 2025, arXiv:2507.18071.
    """
    log_ratio, _ = ratios(log_probs, old_log_probs, mask)
    mean = masked_mean(keep(log_probs, mask) - keep(old_log_probs, mask), mask, -1).detach()[
        :, None
    ]
    own = keep(log_probs, mask)
    s = (own - own.detach() + mean).clamp(max=10.0).exp()
    a = _fixed(advantages, mask)
    unclipped, clipped = -s * a, -s.clamp(1 - clip_low, 1 + clip_high) * a
    return _terms(torch.maximum(unclipped, clipped), log_ratio, mask, clipped > unclipped)


def cispo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """REINFORCE weighed by a clipped ratio: −sg(clip(ρ_t, 1−ε_low, 1+ε_high))·A_t·log π.

    `clipped` is True where the weight was capped; no token loses its gradient. MiniMax 2025, arXiv:2506.13585.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    weight = ratio.clamp(1 - clip_low, 1 + clip_high).detach()
    loss = -weight * _fixed(advantages, mask) * keep(log_probs, mask)
    return _terms(loss, log_ratio, mask, weight != ratio)


def sapo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_positive: float,
    tau_negative: float,
) -> PolicyTerms:
    """A soft gate instead of a clip: −(4/τ)·sigmoid(τ(ρ_t − 1))·A_t, τ by the sign of A_t; its slope at ρ = 1 is A_t.

    Gao et al. 2025, arXiv:2511.20347.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    a = _fixed(advantages, mask)
    tau = torch.where(a > 0, tau_positive, tau_negative)
    return _terms(-4 / tau * torch.sigmoid(tau * (ratio - 1)) * a, log_ratio, mask)


def geo_mean_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyTerms:
    """The geometric mean of the response's ratios times its mean advantage: −e^(mean c_t)·mean(A), the same on every token of it.

    c_t is log ρ_t, not above ε_high where A_t > 0, not below −ε_low where A_t < 0, and 0 where A_t = 0: such a token does not
    count in the ratio (verl's choice; in the paper all tokens of a response have one A). Zhao et al. 2025, arXiv:2507.20673 (GMPO).
    """
    log_ratio, _ = ratios(log_probs, old_log_probs, mask)
    a, free = _fixed(advantages, mask), keep(log_probs, mask) - keep(old_log_probs, mask).detach()
    limited = torch.where(
        a > 0, free.clamp(max=clip_high), torch.where(a < 0, free.clamp(min=-clip_low), 0.0)
    )
    ratio = masked_mean(limited, mask, -1).clamp(max=80.0).exp()  # e^88 is the largest float32
    loss = -(ratio * masked_mean(a, mask, -1))[:, None].expand_as(a)
    return _terms(loss, log_ratio, mask, (limited != free) & (a != 0))


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
    """−sg(min(ρ_t, cap))·A_t·log π, and 0 where the step would go on outside the trust region.

    Outside is: A_t > 0, π above π_old and their divergence above ε_high; A_t < 0, π below π_old and divergence above ε_low. The
    divergence is between «this token» and «another one»: tv |π − π_old|, kl of those two probabilities, KL(π_old ‖ π).
    Qi et al. 2026, arXiv:2602.04879.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    a = _fixed(advantages, mask)
    new, old = keep(log_probs, mask).detach().exp(), keep(old_log_probs, mask).detach().exp()
    distance = (new - old).abs()
    if divergence == "kl":
        other_new, other_old = ((1 - p).clamp(min=1e-10) for p in (new, old))
        distance = -old * log_ratio.detach() + (1 - old) * (other_old.log() - other_new.log())
    outside = torch.where(
        a > 0, (new > old) & (distance > clip_high), (new < old) & (distance > clip_low)
    )
    loss = -ratio.clamp(max=ratio_cap).detach() * a * keep(log_probs, mask)
    return _terms(keep(loss, ~outside), log_ratio, mask, outside)


def dro_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, beta: float
) -> PolicyTerms:
    """−A_t·log π + β/2·(log ρ_t)²: the regression of log ρ on A/β, so that off-policy tokens teach too.

    Richemond et al. 2024, arXiv:2405.19107.
    """
    log_ratio, _ = ratios(log_probs, old_log_probs, mask)
    own = keep(log_probs, mask)
    return _terms(
        -_fixed(advantages, mask) * own
        + beta / 2 * (own - keep(old_log_probs, mask).detach()) ** 2,
        log_ratio,
        mask,
    )


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
    """PPO's clip, and no gradient for the tokens that `select_clip_cov` chose: those that drive the entropy down.

    Cui et al. 2025, arXiv:2505.22617.
    """
    t = clipped_policy_loss(
        log_probs, old_log_probs, advantages, mask, clip_low=clip_low, clip_high=clip_high
    )
    return PolicyTerms(
        keep(t.loss, ~as_bool(selected)),
        t.ratio,
        t.clipped | as_bool(selected),
        t.dual_clipped,
        t.log_ratio,
    )


def select_clip_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    share: float,
    low: float,
    high: float,
    clip_low: float,
    clip_high: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A random `share` of all tokens (at least one), out of those with low < covariance < high that PPO does not clip, bool [B, T]."""
    t = clipped_policy_loss(
        log_probs, old_log_probs, advantages, mask, clip_low=clip_low, clip_high=clip_high
    )
    cov = covariance(log_probs, advantages, mask)
    candidates = (
        ((cov > low) & (cov < high) & as_bool(mask) & ~t.clipped)
        .flatten()
        .nonzero()
        .squeeze(1)
        .cpu()
    )
    count = max(int(share * as_bool(mask).sum()), 1)
    return _chosen(candidates[torch.randperm(len(candidates), generator=generator)[:count]], mask)


def kl_cov_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    selected: Tensor,
    *,
    beta: float,
) -> PolicyTerms:
    """−ρ_t A_t, and β·|log ρ_t| besides for the tokens that `select_kl_cov` chose. Cui et al. 2025, arXiv:2505.22617."""
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    return _terms(
        -ratio * _fixed(advantages, mask) + beta * keep(log_ratio.abs(), selected), log_ratio, mask
    )


def select_kl_cov(log_probs: Tensor, advantages: Tensor, mask: Tensor, *, share: float) -> Tensor:
    """The `share` of the tokens (at least one) with the largest covariance, bool [B, T]."""
    count = int(as_bool(mask).sum())
    cov = covariance(log_probs, advantages, mask).masked_fill(~as_bool(mask), -torch.inf).flatten()
    return _chosen(cov.topk(min(max(int(share * count), 1), count)).indices, mask)


def covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(log π − mean)·(A − mean), means over all mask-1 tokens of the tensor: a token's part in how fast entropy falls."""
    lp, a = keep(log_probs, mask).detach(), _fixed(advantages, mask)
    return keep((lp - masked_mean(lp, mask)) * (a - masked_mean(a, mask)), mask)


def _chosen(index: Tensor, mask: Tensor) -> Tensor:
    chosen = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
    chosen[index.to(mask.device)] = True
    return chosen.view(mask.shape)


def _fixed(advantages: Tensor, mask: Tensor) -> Tensor:
    return keep(advantages, mask).detach()


def _terms(
    loss: Tensor, log_ratio: Tensor, mask: Tensor, clipped: Tensor | None = None
) -> PolicyTerms:
    never = torch.zeros_like(mask, dtype=torch.bool)
    return PolicyTerms(
        keep(loss, mask),
        keep(log_ratio.exp(), mask),
        never if clipped is None else clipped & as_bool(mask),
        never,
        log_ratio,
    )


def dppo_tv_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    ratio_cap: float,
) -> PolicyTerms:
    """`dppo_loss` with the total variation."""
    limits = {"clip_low": clip_low, "clip_high": clip_high, "ratio_cap": ratio_cap}
    return dppo_loss(log_probs, old_log_probs, advantages, mask, divergence="tv", **limits)


def dppo_kl_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    ratio_cap: float,
) -> PolicyTerms:
    """`dppo_loss` with the KL divergence."""
    limits = {"clip_low": clip_low, "clip_high": clip_high, "ratio_cap": ratio_cap}
    return dppo_loss(log_probs, old_log_probs, advantages, mask, divergence="kl", **limits)


def choose_for_clip_cov(
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
    """`select_clip_cov` with the names of the settings."""
    return select_clip_cov(
        log_probs,
        old_log_probs,
        advantages,
        mask,
        share=cov_share,
        low=cov_low,
        high=cov_high,
        clip_low=clip_low,
        clip_high=clip_high,
        generator=generator,
    )


def choose_for_kl_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    cov_share: float,
) -> Tensor:
    """`select_kl_cov` with the names of the settings."""
    return select_kl_cov(log_probs, advantages, mask, share=cov_share)
