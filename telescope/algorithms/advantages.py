"""From rewards and values to advantages and returns.

`values[i]` is V[i], before token i is chosen; `rewards[i]` is the reward of token i.

A token is valid where the mask is 1. Other positions take no time step: they are never read, and
results are 0 there. In the formulas, i⁺ is the next valid token (i + 1 without tools), so every
result equals the one with the other positions deleted. A result has the dtype of its input; sums
are taken in float32 at least.
"""

from __future__ import annotations

import torch
from torch import Tensor

from telescope.algorithms.masked import as_bool, keep

_BLOCK = 64
"""Columns that one matrix product of `_discounted_suffix_sum` adds up."""


def td_errors(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, bootstrap: Tensor | None = None
) -> Tensor:
    """One-step temporal-difference errors, [B, T].

        δ[i] = r[i] + γ·V[i⁺] − V[i]

    V after the last action is 0, or `bootstrap` [B] where a response was cut off.
    Sutton & Barto 2018, section 6.1.
    """
    order = ActionOrder(mask)
    r = order.compact(rewards)
    v = order.compact(values)
    deltas = _td_errors(order, r, v, gamma, bootstrap)
    return order.expand(deltas, rewards)


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over valid tokens: (advantages, returns), both [B, T].

        δ[i] = r[i] + γ·V[i⁺] − V[i]      A[i] = δ[i] + γλ·A[i⁺]      R[i] = A[i] + V[i]

    V after the last action is 0, or `bootstrap` [B] where a response was cut off. λ = 1 gives
    return − value, λ = 0 gives δ. λ may be one number per row, [B]: see `length_adaptive_lam`.
    Advantages are raw: whitening is the caller's next line.
    Schulman et al. 2016, arXiv:1506.02438 (there n = t+1).
    """
    order = ActionOrder(mask)
    r = order.compact(rewards)
    v = order.compact(values)
    deltas = _td_errors(order, r, v, gamma, bootstrap)
    advantages = _discounted_suffix_sum(deltas, gamma * lam)
    returns = v.add_(advantages)
    return order.expand(advantages, rewards), order.expand(returns, values)


def length_adaptive_lam(mask: Tensor, *, alpha: float) -> Tensor:
    """A λ for each response that grows with its length, [B].

        λ = max(1 − 1/(α·l), 0)

    l is the number of actions in the response. The longer the response, the further back its last
    reward reaches.
    Yue et al. 2025, arXiv:2504.05118 (VAPO), where α = 0.05 and the critic's targets keep λ = 1.
    """
    length = as_bool(mask).sum(-1).double().clamp(min=1)
    return (1 - 1 / (alpha * length)).clamp(min=0)


def monte_carlo_returns(
    rewards: Tensor, mask: Tensor, *, gamma: float, bootstrap: Tensor | None = None
) -> Tensor:
    """Observed discounted rewards from token i on, [B, T].

        G[i] = r[i] + γ·G[i⁺]

    G after the last action is 0, or `bootstrap` [B] where a response was cut off.
    Sutton & Barto 2018, section 3.3.
    """
    order = ActionOrder(mask)
    r = order.compact(rewards)
    if bootstrap is not None:
        order.add_at_end(r, gamma * bootstrap)
    return order.expand(_discounted_suffix_sum(r, gamma), rewards)


def n_step_advantages(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    n: int,
    gamma: float,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """Advantages from n observed rewards and one value, [B, T]; t counts valid tokens.

        A^(n)[i] = r[i] + γ·r[i+1] + … + γ^n·V[i+n] − V[i] = Σ_{k<n} γ^k·δ[i+k]

    The sum stops at the end of the response, so an n of at least its length gives G[i] − V[i].
    With N actions left, GAE is a mixture of these:

        A[i] = (1−λ) Σ_{n<N} λ^{n−1}·A^(n)[i] + λ^{N−1}·A^(N)[i]

    Sutton & Barto 2018, section 7.1.
    """
    if n < 1:
        raise ValueError(f"n={n}: an n-step advantage needs at least one step")
    order = ActionOrder(mask)
    # float64: the difference of two sums loses digits where a large reward comes late
    r = order.compact(rewards).double()
    v = order.compact(values).double()
    deltas = _td_errors(order, r, v, gamma, bootstrap)
    to_the_end = _discounted_suffix_sum(deltas, gamma)  # [B, T]
    within_n = to_the_end.clone()
    within_n[:, :-n] -= gamma**n * to_the_end[:, n:]
    return order.expand(within_n, rewards)


class ActionOrder:
    """Moves the valid tokens (the actions) of each row to its front, and back.

    In that order, column k is time step k. A row without holes in its mask is in order already.
    `compact` returns a fresh tensor, so its callers may work in place. That matters: at a thousand
    rows of 8k tokens, allocating temporaries would take most of the time.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = as_bool(mask)
        self.slot: Tensor | None = None
        """Column of each token in action order, [B, T]; None if every row is in order already."""
        after_a_hole = self.mask[:, 1:] > self.mask[:, :-1]
        if bool(after_a_hole.any()):
            # Action k goes to column k, counted from 1; column 0 is never read.
            # Mask-0 tokens, which hold 0, go to a spare column past the end.
            spare = mask.shape[1] + 1
            self.slot = self.mask.long().cumsum_(1).masked_fill_(~self.mask, spare)

    def compact(self, x: Tensor) -> Tensor:
        """`x` [B, T] in action order, in float32 at least."""
        # bfloat16 cannot add up a long response
        wide = torch.promote_types(_float(x), torch.float32)
        x = keep(x, self.mask).to(wide)
        if self.slot is None:
            return x
        width = -(-(x.shape[1] + 2) // _BLOCK) * _BLOCK
        return x.new_zeros(x.shape[0], width).scatter_(1, self.slot, x)

    def expand(self, x: Tensor, like: Tensor) -> Tensor:
        """`x` back in the order of the response, in the dtype of `like`."""
        # Past the last action every recursion here gives 0: there is nothing to mask again.
        if self.slot is not None:
            x = x.gather(1, self.slot)
        return x.to(_float(like))

    def add_at_end(self, x: Tensor, amount: Tensor) -> None:
        """Adds `amount` [B] to the last action of each row; a row without actions is unchanged."""
        if not x.numel():
            return
        count = self.mask.sum(1)
        first_column = 0 if self.slot is None else 1
        last = (count - 1 + first_column).clamp(min=0).unsqueeze(1)
        x.scatter_add_(1, last, keep(amount.to(x.dtype), count).unsqueeze(1))


def _float(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def _td_errors(
    order: ActionOrder, rewards: Tensor, values: Tensor, gamma: float, bootstrap: Tensor | None
) -> Tensor:
    """`td_errors` of tensors in action order; overwrites `rewards`."""
    deltas = rewards.sub_(values)
    deltas[:, :-1].add_(values[:, 1:], alpha=gamma)  # V[i⁺]; 0 after the last action
    if bootstrap is not None:
        order.add_at_end(deltas, gamma * bootstrap)
    return deltas


def _discounted_suffix_sum(x: Tensor, decay: float | Tensor) -> Tensor:
    """Discounted sums to the end of each row, [B, T]; `decay` may be one number per row, [B].

        y_t = x_t + decay·y_{t+1}

    Exact, in O(log T) kernels. One triangular matrix product adds up each block of 64 columns.
    The same scan over the first columns of the blocks, with decay^64, gives what enters each block
    from its right.
    """
    rows, length = x.shape
    if x.numel() == 0:
        return x
    if x.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
        # A script that allows TF32 did not mean this sum.
        return _discounted_suffix_sum(x.double(), decay).float()
    width = min(_BLOCK, length)
    step = torch.arange(width, device=x.device)
    gap = step[:, None] - step[None, :]  # from column j (row of the matrix) back to column i
    base = decay
    if isinstance(base, Tensor):
        base = base.to(x.device, torch.float64)[:, None, None]  # [B, 1, 1]
    # [width, width], or [B, width, width] where the decay differs by row
    powers = torch.where(gap >= 0, base ** gap.clamp(min=0).to(torch.float64), 0.0).to(x.dtype)
    padded = x
    if length % width:
        padded = torch.nn.functional.pad(x, (0, -length % width))
    shape = (-1, width) if powers.dim() == 2 else (rows, -1, width)
    blocks = padded.reshape(shape) @ powers
    blocks = blocks.view(rows, -1, width)  # [B, blocks, width]
    if blocks.shape[1] > 1:
        heads = _discounted_suffix_sum(blocks[:, :, 0], decay**width)  # y at each block's start
        fade = (base ** (width - step).to(torch.float64)).to(x.dtype)
        blocks[:, :-1].addcmul_(heads[:, 1:, None], fade)
    return blocks.view(rows, -1)[:, :length]
