"""Statistics over the tokens that count.

A mask is 1 (or True) where a token counts. Whatever stands elsewhere (garbage, inf, NaN) is replaced before any
arithmetic, because NaN × 0 is NaN: neither the result nor its gradient can see it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def keep(values: Tensor, mask: Tensor) -> Tensor:
    """`values` on the mask, exactly 0 off it, in the value and in the gradient."""
    return torch.where(
        as_bool(mask), values, torch.zeros((), dtype=values.dtype, device=values.device)
    )


def as_bool(mask: Tensor) -> Tensor:
    return mask if mask.dtype is torch.bool else mask != 0


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Σ x over mask-1 elements, of the whole tensor or along `axis`."""
    kept = keep(values, mask)
    return kept.sum() if axis is None else kept.sum(axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """Σ x / n over mask-1 elements; 0 where there are none."""
    count = as_bool(mask).expand_as(values)
    n = count.sum() if axis is None else count.sum(axis)
    return masked_sum(values, mask, axis) / n.clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, *, unbiased: bool = True) -> Tensor:
    """Variance of the mask-1 elements: Σ (x − μ)² / (n − 1), or / n if not `unbiased`. 0 with fewer than two elements."""
    _, var = _moments(values, mask, unbiased)
    return var.to(values.dtype)


def whitening(values: Tensor, mask: Tensor, *, eps: float = 1e-8) -> tuple[Tensor, Tensor]:
    """(μ, σ) that `masked_whiten` subtracts and divides by, float64: σ = sqrt(variance + eps)."""
    mean, var = _moments(values, mask, unbiased=True)
    return mean, (var + eps).sqrt()


def masked_whiten(
    values: Tensor, mask: Tensor, shift_mean: bool = True, *, eps: float = 1e-8
) -> Tensor:
    """(x − μ) / sqrt(σ² + eps) with ONE mean and one Bessel-corrected variance over all mask-1 elements of the tensor.

    `shift_mean=False` scales only and leaves the mean where it was. 0 off the mask. A single element whitens to 0, an
    empty mask to zeros. Andrychowicz et al. 2021, arXiv:2006.05990, section 3.5 (advantage normalisation).
    """
    mean, std = whitening(values, mask, eps=eps)
    whitened = (keep(values, mask).double() - mean) / std
    if not shift_mean:
        whitened = whitened + mean
    return keep(whitened.to(values.dtype), mask)


def _moments(values: Tensor, mask: Tensor, unbiased: bool) -> tuple[Tensor, Tensor]:
    # float64: the float32 mean of equal numbers is off by an ulp, and dividing that by a tiny σ makes a signal of it
    kept = keep(values, mask).double()
    n = as_bool(mask).expand_as(values).sum()
    mean = kept.sum() / n.clamp(min=1)
    squares = keep((kept - mean) ** 2, mask).sum()
    return mean, squares / (n - 1 if unbiased else n).clamp(min=1)
