"""How far the policy has moved from the reference, per token, and how hard that is punished."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_K3_CAP = 10.0
"""Largest value of k3, as in verl."""
_K3_CAP_AT = 2.6109
"""log π_ref(a) − log π(a) at which k3 reaches the cap."""


def kl_penalty(log_probs: Tensor, ref_log_prob: Tensor, kind: str = "k1") -> Tensor:
    """Per-token estimate of KL(π ‖ π_ref) from one sampled token, d = log π(a) − log π_ref(a).

        k1, kl          d                    unbiased; a single token may be negative
        abs             |d|
        k2, mse         ½ d²                 biased, never negative; its gradient is the true KL's
        k3, low_var_kl  e^(−d) + d − 1       unbiased, never negative
        full            Σ_v π(v) (log π(v) − log π_ref(v))

    `full` takes logits (or log-probs) [..., V] instead of one token's log-prob. A trailing +
    (k1+, k3+, …) keeps the value and takes k2's gradient.

    The value of k3 is capped at 10. Its gradient is not cut there, which would free exactly the
    tokens that have strayed furthest; it stays at the slope of the cap.
    Schulman 2020, "Approximating KL Divergence".
    """
    if kind == "full":
        log_p = _finite(log_probs.log_softmax(-1))
        log_q = _finite(ref_log_prob.log_softmax(-1))
        return (log_p.exp() * (log_p - log_q)).sum(-1)
    if kind.endswith("+"):
        value = kl_penalty(log_probs, ref_log_prob, kind[:-1])
        d = _finite(log_probs) - _finite(ref_log_prob)
        return value.detach() + d.detach() * (d - d.detach())
    d = log_probs - ref_log_prob
    if kind in ("k1", "kl"):
        return d
    if kind == "abs":
        return d.abs()
    if kind in ("k2", "mse"):
        return 0.5 * d**2
    if kind in ("k3", "low_var_kl"):
        d = _finite(log_probs) - _finite(ref_log_prob)
        value = (torch.expm1((-d).clamp(-20, 20)) + d.clamp(-20, 20)).clamp(0, _K3_CAP)
        slope = 1 - torch.exp((-d).clamp(max=_K3_CAP_AT))
        return value.detach() + slope.detach() * (d - d.detach())
    raise ValueError(
        f"unknown KL kind {kind!r}; use one of k1, abs, k2, k3, full "
        "(kl, mse, low_var_kl are their other names)"
    )


def _finite(log_probs: Tensor) -> Tensor:
    """Replaces the −inf of a banned token: 0 · −inf and inf − inf are NaN."""
    return log_probs.clamp(min=torch.finfo(log_probs.dtype).min)


def adapt_kl_coef(beta: float, kl: float, *, target: float, horizon: int, n_steps: int) -> float:
    """One step of the adaptive KL coefficient.

        β ← β · (1 + clip(kl/target − 1, ±0.2) · min(n/horizon, 1))

    n is `n_steps`, the number of samples since the last call. n/horizon counts for at most 1, so
    that β stays positive however large the batch. A KL that is not finite leaves β as it is.
    Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """
    if not math.isfinite(kl):
        return beta
    error = min(max(kl / target - 1, -0.2), 0.2)
    progress = min(n_steps / horizon, 1.0)
    return beta * (1 + error * progress)
