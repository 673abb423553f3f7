"""Sums, means and variances over the valid elements of a tensor.

An element is valid where the mask is 1 (or True). Values elsewhere (garbage, inf, NaN) are
replaced by 0 before any arithmetic, because NaN × 0 is NaN. They change neither the result nor its
gradient.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def keep(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is 1, else exactly 0, in the value and in the gradient."""
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    return torch.where(as_bool(mask), values, zero)


def as_bool(mask: Tensor) -> Tensor:
    """`mask` as a bool tensor."""
    return mask if mask.dtype is torch.bool else mask != 0


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Σ x over valid elements, of the whole tensor or along `axis`."""
    kept = keep(values, mask)
    return kept.sum() if axis is None else kept.sum(axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Σ x / n over valid elements; 0 if there are none."""
    count = as_bool(mask).expand_as(values)
    n = count.sum() if axis is None else count.sum(axis)
    return masked_sum(values, mask, axis) / n.clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, *, unbiased: bool = True) -> Tensor:
    """Variance of the valid elements; 0 with fewer than two of them.

    Σ (x − μ)² / (n − 1)      or Σ (x − μ)² / n if not `unbiased`
    """
    _, var = _moments(values, mask, unbiased)
    return var.to(values.dtype)


Over = Literal["tokens", "responses"]
"""What counts once in the μ and σ of whitening."""


def whitening(
    values: Tensor, mask: Tensor, *, eps: float = 1e-8, over: Over = "tokens"
) -> tuple[Tensor, Tensor]:
    """(μ, σ) that `masked_whiten` subtracts and divides by, float64: σ = sqrt(variance + eps)."""
    if over == "responses":
        values = masked_mean(values, mask, -1)
        mask = as_bool(mask).any(-1)
    mean, var = _moments(values, mask, unbiased=True)
    return mean, (var + eps).sqrt()


def masked_whiten(
    values: Tensor,
    mask: Tensor,
    shift_mean: bool = True,
    *,
    eps: float = 1e-8,
    over: Over = "tokens",
) -> Tensor:
    """Shifts and scales the valid elements to mean 0 and variance 1; 0 where the mask is 0.

        (x − μ) / sqrt(var + eps)

    μ is ONE mean and var one variance (n − 1) over all valid elements of the tensor.
    `shift_mean=False` scales only and keeps the mean. A single element becomes 0, an empty mask
    gives zeros. Andrychowicz et al. 2021, arXiv:2006.05990, section 3.5 (advantage normalisation).
    With `over` responses, μ and var are of the means of the rows, so that a long response counts no
    more than a short one.
    """
    mean, std = whitening(values, mask, eps=eps, over=over)
    whitened = (keep(values, mask).double() - mean) / std
    if not shift_mean:
        whitened = whitened + mean
    return keep(whitened.to(values.dtype), mask)


def _moments(values: Tensor, mask: Tensor, unbiased: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance of the valid elements, float64."""
    # In float32 the mean of equal numbers is off by an ulp. Divided by a tiny σ, that is a signal.
    kept = keep(values, mask).double()
    n = as_bool(mask).expand_as(values).sum()
    mean = kept.sum() / n.clamp(min=1)
    squares = keep((kept - mean) ** 2, mask).sum()
    freedom = n - 1 if unbiased else n
    return mean, squares / freedom.clamp(min=1)
