"""Corrections for a sampler whose probabilities differ from the trainer's.

All tensors are [B, T]. In the formulas g[i] = log π_old(a_i) − log π_sampler(a_i), and e^g is the
ratio π_old/π_sampler. telescope.algorithms.definitions.mismatch has the same on plain numbers.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from telescope.algorithms.definitions.mismatch import LOG_LIMIT, REJECTIONS
from telescope.algorithms.masked import as_bool, keep, masked_mean


def importance_weights(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    level: Literal["token", "sequence"],
    cap: float,
    low: float = 0.0,
    mode: Literal["truncate", "mask"] = "truncate",
) -> Tensor:
    """Weights for a sampler whose probabilities differ from the trainer's, [B, T].

        truncate  w[i] = clip(π_old/π_sampler, low, cap)
        mask      w[i] = π_old/π_sampler between low and cap, else 0

    `level` token takes the ratio of each token (biased, little noise). `level` sequence takes the
    ratio of the whole response (exact but for the cap, noisy). Weights are 0 where the mask is 0.
    Mask by token is IcePop: Ling team 2025, arXiv:2510.18855. A token with weight 0 has no
    gradient, but still counts in the loss's denominator.
    """
    _one_of("level", level, ("token", "sequence"))
    _one_of("mode", mode, ("truncate", "mask"))
    if not cap > 0:
        raise ValueError(f"cap must be above 0, not {cap}")
    if not 0 <= low <= cap:
        raise ValueError(f"0 ≤ low ≤ cap must hold, not low = {low}, cap = {cap}")
    gap = _gaps(old_log_probs, rollout_log_probs, mask)
    if level == "sequence":
        gap = gap.sum(1, keepdim=True).expand_as(gap)
    ratio = gap.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
    if mode == "mask":
        weight = keep(ratio, (ratio >= low) & (ratio <= cap))
    else:
        weight = ratio.clamp(low, cap)
    return keep(weight, mask)


def kept_by_ratio(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    level: str,
    high: float,
    low: float | None = None,
) -> Tensor:
    """The tokens that stay in the update because sampler and trainer agree on them, bool [B, T].

        token, sequence, geometric    low ≤ π_old/π_sampler ≤ high
        token_k2, seq_…_k2            ½g² ≤ high
        token_k3, seq_…_k3            e^g − 1 − g ≤ high

    `level` token takes the ratio of each token, sequence the ratio of the whole response, geometric
    the geometric mean of the response's ratios. seq_sum, seq_mean and seq_max take the sum, mean or
    maximum of k2 or k3 over the response. Liu et al. 2025, "When Speed Kills Stability".
    """
    _one_of("level", level, tuple(REJECTIONS))
    rejection = REJECTIONS[level]
    by_ratio = rejection.estimate == "k1"
    if by_ratio and not 0 < (low or 0) <= high:
        raise ValueError(f"0 < low ≤ high must hold, not low = {low}, high = {high}")
    if not by_ratio and not (high > 0 and low is None):
        raise ValueError(f"{level} has only an upper bound above 0: not low = {low}, high = {high}")
    gap = _gaps(old_log_probs, rollout_log_probs, mask)
    limited = gap.clamp(-LOG_LIMIT, LOG_LIMIT)
    numbers = {"k1": gap, "k2": 0.5 * limited**2, "k3": torch.expm1(limited) - limited}
    number = numbers[rejection.estimate]
    if rejection.over == "max":
        number = number.amax(1, keepdim=True)  # k2 and k3 are 0 where the mask is 0
    elif rejection.over == "sum":
        number = number.sum(1, keepdim=True)
    elif rejection.over == "mean":
        number = masked_mean(number, mask, 1)[:, None]
    inside = number <= (math.log(high) if by_ratio else high)
    if by_ratio:
        inside &= number >= math.log(low or 1.0)
    return inside & as_bool(mask)


def without_outliers(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, *, limit: float
) -> Tensor:
    """The tokens of the responses in which every token has 1/limit ≤ π_old/π_sampler ≤ limit.

    One token that the sampler and the trainer see very differently spoils its whole response: what
    follows was written after it. As the token veto of verl and SkyRL's outlier mask.
    """
    if not limit > 1:
        raise ValueError(f"limit must be above 1, not {limit}")
    gap = _gaps(old_log_probs, rollout_log_probs, mask)
    return (gap.abs() <= math.log(limit)).all(1, keepdim=True) & as_bool(mask)


def off_policy_mask(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    threshold: float,
) -> Tensor:
    """The tokens that a response too far from the policy must not push down, bool [B, T].

        A[i] < 0  and  mean over the response of (log π_sampler − log π) > threshold

    π is the policy as it is now. Their loss is set to 0; they still count in its denominator.
    DeepSeek-AI 2025, arXiv:2512.02556, equation 9.
    """
    gap = _gaps(rollout_log_probs, log_probs, mask).detach()
    is_far = masked_mean(gap, mask, 1)[:, None] > threshold
    return is_far & (advantages < 0) & as_bool(mask)


def top_entropy(entropy: Tensor, mask: Tensor, *, share: float) -> Tensor:
    """The `share` of the tokens (at least one) with the largest entropy, bool [B, T].

    Tokens with the entropy of the last one chosen are chosen too. Where the policy is nearly
    certain there is little to decide. Wang et al. 2025, arXiv:2506.01939.
    """
    if not 0 < share <= 1:
        raise ValueError(f"0 < share ≤ 1 must hold, not {share}")
    valid = entropy.detach()[as_bool(mask)]
    if not len(valid):
        return torch.zeros_like(as_bool(mask))
    count = max(int(share * len(valid)), 1)
    threshold = valid.topk(count).values[-1]
    return (entropy.detach() >= threshold) & as_bool(mask)


def _gaps(of: Tensor, less: Tensor, mask: Tensor) -> Tensor:
    """`of` − `less` on the mask, else 0."""
    return keep(of, mask) - keep(less, mask)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}; use one of {', '.join(known)}")
