"""What the actor and the critic minimise.

A loss function returns its per-token terms, [B, T] and 0 where the mask is 0. The ledger records
these terms, so that what is recorded is what was computed. `aggregate` turns them into the
number that is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from telescope.algorithms.definitions.base import Aggregation
from telescope.algorithms.definitions.value import bins_of
from telescope.algorithms.masked import as_bool, keep, masked_mean, masked_sum


@dataclass(frozen=True)
class PolicyTerms:
    """Per-token results of a policy loss, each [B, T] and 0 where the mask is 0."""

    loss: Tensor
    """−objective: what is aggregated and differentiated."""
    ratio: Tensor
    """ρ[i] = π_θ(a_i|s_i) / π_old(a_i|s_i)."""
    clipped: Tensor
    """True where the clipped branch won: the gradient through ρ[i] is 0.
    cispo: where ρ[i] was capped."""
    dual_clipped: Tensor
    """True where A < 0 and the dual clip bounded the loss."""
    log_ratio: Tensor
    """log ρ[i], between −20 and 20.
    Estimates of KL(π_old ‖ π_θ): −mean(log ρ) is k1, mean(ρ − 1 − log ρ) is k3."""


@dataclass(frozen=True)
class ValueTerms:
    """Per-token results of a value loss, each [B, T] and 0 where the mask is 0."""

    loss: Tensor
    clipped: Tensor
    """True where the clipped prediction had the larger error.
    Its gradient is 0 where the prediction lies outside the range."""
    log_p: Tensor | None = None
    """HL-Gauss: log p of the W bins around the target, [B, T, W].
    All other bins hold less than 1e-8 of the target's mass."""
    first_bin: Tensor | None = None
    """HL-Gauss: index of the first of these bins, [B, T]."""


def log_probs_from_logits(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits)[token]: [..., V], [...] -> [...]. Rounded once, at the end."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen = wide.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return (chosen - wide.logsumexp(-1)).to(logits.dtype)


def entropy_from_logits(logits: Tensor) -> Tensor:
    """H = −Σ_v p_v log p_v, in nats: [..., V] -> [...]."""
    # A banned token has log-prob −inf, and −inf times 0 is NaN.
    lowest = torch.finfo(logits.dtype).min
    log_p = logits.log_softmax(-1).clamp(min=lowest)
    return -(log_p.exp() * log_p).sum(-1)


def entropy_weight(old_log_probs: Tensor, mask: Tensor, *, coef: float, target: float) -> float:
    """Weight of the entropy bonus that falls to 0 as the policy's entropy rises to a target.

        w = coef · max(0, 1 − H / H_target)      H = −mean log π_old(a_t|s_t)

    H, over all action tokens of the batch, estimates the entropy of the policy that wrote it. So
    the bonus acts against a collapse, and never pays for more entropy than H_target.
    """
    entropy = -float(masked_mean(old_log_probs.double(), mask))
    return coef * max(0.0, 1 - max(entropy, 0.0) / target)


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> PolicyTerms:
    """PPO's clipped surrogate, as a loss.

        L[i] = −min(ρ[i] A[i], clip(ρ[i], 1−ε_low, 1+ε_high) A[i])

    With `dual_clip` = c > 1, the loss is at most −c·A[i] where A[i] < 0, so that a ratio that has
    exploded cannot dominate.
    Schulman et al. 2017, arXiv:1707.06347; dual clip: Ye et al. 2020, arXiv:1912.09729.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    loss, is_clipped, is_dual = clip_ratio(
        ratio,
        fixed(advantages, mask),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    return policy_terms(loss, log_ratio, mask, is_clipped, is_dual)


def clip_ratio(
    ratio: Tensor, a: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's clip of a ratio with advantage `a`: the loss, and where it and the dual clip acted."""
    unclipped = -ratio * a
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * a
    loss = torch.maximum(unclipped, clipped)
    is_clipped = clipped > unclipped
    is_dual = torch.zeros_like(is_clipped)
    if dual_clip is not None:
        bound = -dual_clip * a
        is_dual = (a < 0) & (loss > bound)
        loss = torch.where(a < 0, torch.minimum(loss, bound), loss)
    return loss, is_clipped, is_dual


def surrogate_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
) -> PolicyTerms:
    """The unclipped surrogate of conservative policy iteration and TRPO, as a loss.

        L[i] = −ρ[i] A[i]

    TRPO maximises ρ[i] A[i] under E[KL(π_old, π_θ)] ≤ δ; here early stopping on KL plays that part.
    Kakade & Langford 2002; Schulman et al. 2015, arXiv:1502.05477.
    """
    log_ratio, ratio = ratios(log_probs, old_log_probs, mask)
    return policy_terms(-ratio * fixed(advantages, mask), log_ratio, mask)


def policy_terms(
    loss: Tensor,
    log_ratio: Tensor,
    mask: Tensor,
    clipped: Tensor | None = None,
    dual_clipped: Tensor | None = None,
) -> PolicyTerms:
    """The terms of a loss; `clipped` and `dual_clipped` None: of no token."""
    never = torch.zeros_like(mask, dtype=torch.bool)
    return PolicyTerms(
        keep(loss, mask),
        keep(log_ratio.exp(), mask),
        never if clipped is None else clipped & as_bool(mask),
        never if dual_clipped is None else dual_clipped & as_bool(mask),
        log_ratio,
    )


def fixed(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages on the mask, without a gradient."""
    return keep(advantages, mask).detach()


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip_value: float | None = 0.2,
) -> ValueTerms:
    """Half the squared error, pessimistic like the clipped policy loss.

        L[i] = 0.5·max((V[i] − R[i])², (clip(V[i], V_old ± ε) − R[i])²)

    ε is `clip_value`; None gives the plain 0.5·(V[i] − R[i])². No gradient flows into the target R.
    The code of Schulman et al. 2017 (baselines ppo2).
    """

    def half_square(error: Tensor) -> Tensor:
        return 0.5 * error**2

    return _larger_error(values, old_values, returns, mask, clip_value, half_square)


def huber_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip_value: float | None = 0.2,
    delta: float = 1.0,
) -> ValueTerms:
    """`clipped_value_loss` with Huber's error in place of half the square.

        H(x) = ½x² if |x| ≤ huber_delta, else huber_delta·(|x| − ½·huber_delta)

    One wild return cannot dominate. Huber 1964.
    """

    def huber(error: Tensor) -> Tensor:
        size = error.abs()
        return torch.where(size <= delta, 0.5 * error**2, delta * (size - 0.5 * delta))

    return _larger_error(values, old_values, returns, mask, clip_value, huber)


def hl_gauss_loss(
    logits: Tensor, returns: Tensor, mask: Tensor, *, low: float, high: float, sigma: float
) -> ValueTerms:
    """Value as classification over K bins of [low, high].

        L[i] = −Σ_k q_k·log p_k      dL/dlogits = p − q

    p is softmax(logits) [B, T, K], q is `hl_gauss_targets` of the return. The value is
    `hl_gauss_values`.
    Imani & White 2018, arXiv:1806.04613; Farebrother et al. 2024, arXiv:2403.03950.
    """
    bins = logits.shape[-1]
    width = (high - low) / bins
    target = keep(returns, mask).detach().clamp(low, high)
    q = hl_gauss_targets(target, bins=bins, low=low, high=high, sigma=sigma)
    q = q.to(logits.dtype)  # [B, T, K]
    log_p = keep(logits, mask.unsqueeze(-1)).log_softmax(-1)
    # The bins within 6 σ of the target are recorded.
    reach = math.ceil(min(6 * sigma / width, bins))
    window = torch.arange(min(2 * reach + 1, bins), device=logits.device)  # [W]
    middle = ((target - low) / width).floor().long()
    first = (middle - reach).clamp(0, bins - len(window))
    near = keep(log_p.gather(-1, first.unsqueeze(-1) + window), mask.unsqueeze(-1))
    return ValueTerms(
        keep(-(q * log_p).sum(-1), mask),
        torch.zeros_like(mask, dtype=torch.bool),
        near,
        keep(first, mask),
    )


def hl_gauss_targets(
    returns: Tensor, *, bins: int, low: float, high: float, sigma: float
) -> Tensor:
    """The histogram of a Gaussian around each return, in float64: [...] -> [..., K].

        q_k = (Φ((e_{k+1} − R)/σ) − Φ((e_k − R)/σ)) / (Φ((high − R)/σ) − Φ((low − R)/σ))

    e_k are the edges of the bins; R is clipped to [low, high] first. Σ_k q_k = 1. Where R is at
    least 5 σ from both ends, Σ_k q_k·(middle of bin k) is R up to w·e^(−2π²(σ/w)²)/π, w the width
    of a bin (5e-6 w with σ = 0.75 w). Nearer to an end it is pulled inwards: with σ = 0.75 w by
    0.7 w at the end itself.
    """
    # A larger σ gives bins that are equal up to 1e-8, but whose masses are too small to subtract.
    sigma = min(sigma, 1e4 * (high - low))
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64, device=returns.device)  # [K+1]
    target = returns.double().clamp(low, high).unsqueeze(-1)  # [..., 1]
    cdf: Tensor = torch.special.ndtr((edges - target) / sigma)  # [..., K+1]
    return cdf.diff(dim=-1) / (cdf[..., -1:] - cdf[..., :1])


def hl_gauss_values(logits: Tensor, *, low: float, high: float) -> Tensor:
    """V = Σ_k p_k·(middle of bin k): [B, T, K] -> [B, T]."""
    bins = logits.shape[-1]
    width = (high - low) / bins
    index = torch.arange(bins, dtype=logits.dtype, device=logits.device)
    middles = low + width * (index + 0.5)  # [K]
    return logits.softmax(-1) @ middles


def _larger_error(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip_value: float | None,
    error: Callable[[Tensor], Tensor],
) -> ValueTerms:
    """The larger error of the prediction and of the prediction clipped to V_old ± ε."""
    v = keep(values, mask)
    old = keep(old_values, mask).detach()
    target = keep(returns, mask).detach()
    plain = error(v - target)
    if clip_value is None:
        return ValueTerms(plain, torch.zeros_like(mask, dtype=torch.bool))
    clipped = error(torch.clamp(v, old - clip_value, old + clip_value) - target)
    is_clipped = (clipped > plain) & as_bool(mask)
    return ValueTerms(torch.maximum(plain, clipped), is_clipped)


class Prediction(Protocol):
    """What the critic predicts now."""

    @property
    def values(self) -> Tensor:
        """[B, T]"""

    @property
    def logits(self) -> Tensor | None:
        """[B, T, K] of a critic that predicts a histogram."""


class Targets(Protocol):
    """Rows of a batch with `values` and `returns` of the rollout."""

    @property
    def mask(self) -> Tensor: ...

    def __getitem__(self, name: str) -> Tensor: ...


def mse_terms(prediction: Prediction, rows: Targets, s: Any) -> ValueTerms:
    """`clipped_value_loss` of rows of a batch, with the settings `s`."""
    old = rows["values"]
    target = rows["returns"]
    return clipped_value_loss(prediction.values, old, target, rows.mask, clip_value=s.clip_value)


def huber_terms(prediction: Prediction, rows: Targets, s: Any) -> ValueTerms:
    """`huber_value_loss` of rows of a batch, with the settings `s`."""
    old = rows["values"]
    target = rows["returns"]
    return huber_value_loss(
        prediction.values, old, target, rows.mask, clip_value=s.clip_value, delta=s.huber_delta
    )


def hl_gauss_terms(prediction: Prediction, rows: Targets, s: Any) -> ValueTerms:
    """`hl_gauss_loss` of rows of a batch, with the settings `s`."""
    assert prediction.logits is not None
    bins = bins_of(s)
    return hl_gauss_loss(
        prediction.logits,
        rows["returns"],
        rows.mask,
        low=bins.low,
        high=bins.high,
        sigma=s.sigma * bins.width,
    )


def aggregate(
    loss: Tensor,
    mask: Tensor,
    mode: Aggregation = "token-mean",
    *,
    num_tokens: Tensor | float | None = None,
    num_rows: Tensor | float | None = None,
    horizon: float | None = None,
    row_shares: Tensor | None = None,
) -> Tensor:
    """Per-token losses [B, T] to one number.

        token-mean               Σ over tokens / number of tokens
        token-sum                Σ over tokens
        seq-mean-token-sum       mean over rows of Σ over the row's tokens
        seq-mean-token-mean      mean over rows of the row's mean
        seq-mean-token-sum-norm  seq-mean-token-sum / horizon
        prompt-mean              mean over prompts of the mean over the tokens of their responses

    The denominators are counted in this tensor unless they are given; the default of `horizon` is
    T. A micro-batch passes `num_tokens` and `num_rows` of its whole minibatch, and the response
    limit as `horizon`. Then the losses and gradients of the micro-batches add up to those of the
    minibatch, however it was split. Rows without a token do not count. prompt-mean needs
    `row_shares` [B], which `prompt_shares` makes of the minibatch.
    """
    rows = as_bool(mask).any(-1)
    n_rows = rows.sum().clamp(min=1) if num_rows is None else num_rows
    if mode == "token-mean":
        n_tokens = as_bool(mask).sum().clamp(min=1) if num_tokens is None else num_tokens
        return masked_sum(loss, mask) / n_tokens
    if mode == "token-sum":
        return masked_sum(loss, mask)
    if mode == "seq-mean-token-sum":
        return masked_sum(loss, mask) / n_rows
    if mode == "seq-mean-token-mean":
        return masked_mean(loss, mask, -1).sum() / n_rows
    if mode == "seq-mean-token-sum-norm":
        if horizon is None:
            horizon = max(loss.shape[-1], 1)
        return masked_sum(loss, mask) / n_rows / horizon
    if mode == "prompt-mean":
        if row_shares is None:
            raise ValueError("aggregation 'prompt-mean' needs row_shares: see prompt_shares")
        return (masked_sum(loss, mask, -1) * row_shares).sum()
    raise ValueError(f"unknown aggregation {mode!r}; use one of {', '.join(Aggregation.__args__)}")


def prompt_shares(mask: Tensor, group: Tensor) -> Tensor:
    """What a token of each row counts in prompt-mean, [B].

        1 / (number of prompts · tokens of all responses to the row's prompt)

    `group` [B] numbers the prompts. Prompts without a token do not count. Khatri et al. 2025
    (ScaleRL), arXiv:2510.13786.
    """
    _, place = group.unique(return_inverse=True)  # [B]
    tokens = as_bool(mask).sum(-1)
    of_prompt = torch.zeros(len(group), device=mask.device).index_add(0, place, tokens.float())
    prompts = (of_prompt > 0).sum().clamp(min=1)
    return 1 / (prompts * of_prompt.clamp(min=1))[place]


def ratios(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(log ρ, ρ) with ρ[i] = π_θ(a_i|s_i) / π_old(a_i|s_i), both [B, T]."""
    log_ratio = keep(log_probs, mask) - keep(old_log_probs, mask).detach()
    log_ratio = log_ratio.clamp(-20.0, 20.0)  # a ratio of 5e8: exp cannot overflow
    return log_ratio, log_ratio.exp()
