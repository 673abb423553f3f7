"""From rewards and values to advantages and returns.

States are fence posts, tokens the gaps between them: `values[t]` is V(s_t), before token t is chosen; `rewards[t]` is
paid for token t. Positions with mask 0 take no time step: n below is the next position with mask 1, and every result
equals the one with the mask-0 positions deleted. What stands off the mask is never read. Results are 0 off the mask, and in
the dtype of what they follow from; sums are taken in float32 at least.
"""

from __future__ import annotations

import torch
from torch import Tensor

from telescope.algorithms.masked import as_bool, keep

_BLOCK = 64


def td_errors(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, bootstrap: Tensor | None = None
) -> Tensor:
    """One-step surprises δ_t = r_t + γ·V(s_n) − V(s_t).

    V after the last action is 0, or `bootstrap` [B] where a response was cut off. Sutton & Barto 2018, section 6.1.
    """
    steps = Steps(mask)
    return steps.expand(
        _td_errors(steps, steps.compact(rewards), steps.compact(values), gamma, bootstrap), rewards
    )


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over action tokens -> (advantages, returns), both [B, T].

        δ_t = r_t + γ·V(s_n) − V(s_t)      A_t = δ_t + γλ·A_n      R_t = A_t + V(s_t)

    V after the last action is 0, or `bootstrap` [B] where a response was cut off. λ=1 gives return − value, λ=0 gives δ; it may
    be a number per row, [B]: see `length_adaptive_lam`.
    Advantages are raw: whitening is the caller's next line. Schulman et al. 2016, arXiv:1506.02438 (there n = t+1).
    """
    steps = Steps(mask)
    v = steps.compact(values)
    deltas = _td_errors(steps, steps.compact(rewards), v, gamma, bootstrap)
    advantages = _discounted_suffix_sum(deltas, gamma * lam)
    return steps.expand(advantages, rewards), steps.expand(v.add_(advantages), values)


def length_adaptive_lam(mask: Tensor, *, alpha: float) -> Tensor:
    """λ = 1 − 1/(α·l), at least 0, [B], l the actions of the response: the longer it is, the further back its end is felt.

    Yue et al. 2025, arXiv:2504.05118 (VAPO), where α = 0.05 and the critic's targets keep λ = 1.
    """
    return (1 - 1 / (alpha * as_bool(mask).sum(-1).double().clamp(min=1))).clamp(min=0)


def monte_carlo_returns(
    rewards: Tensor, mask: Tensor, *, gamma: float, bootstrap: Tensor | None = None
) -> Tensor:
    """Observed discounted reward from token t on: G_t = r_t + γ·G_n.

    After the last action 0, or `bootstrap` [B] where a response was cut off. Sutton & Barto 2018, section 3.3.
    """
    steps = Steps(mask)
    r = steps.compact(rewards)
    if bootstrap is not None:
        steps.add_at_end(r, gamma * bootstrap)
    return steps.expand(_discounted_suffix_sum(r, gamma), rewards)


def n_step_advantages(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    n: int,
    gamma: float,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """A^(n)_t = r_t + γ r_{t+1} + … + γ^n V(s_{t+n}) − V(s_t) = Σ_{k<n} γ^k δ_{t+k}, counted in action tokens.

    Past the end the sum stops, so n at least as long as the response gives G_t − V(s_t). GAE mixes them, with N actions
    left: A_t = (1−λ) Σ_{n<N} λ^{n−1} A^(n)_t + λ^{N−1} A^(N)_t. Sutton & Barto 2018, section 7.1.
    """
    if n < 1:
        raise ValueError(f"n={n}: an n-step advantage needs at least one step")
    steps = Steps(mask)
    # float64: the difference of two sums to the end keeps few digits where a large reward comes late
    deltas = _td_errors(
        steps, steps.compact(rewards).double(), steps.compact(values).double(), gamma, bootstrap
    )
    total = _discounted_suffix_sum(deltas, gamma)  # [B, T], Σ to the end
    within = total.clone()
    within[:, :-n] -= gamma**n * total[:, n:]  # less the part that starts n steps later
    return steps.expand(within, rewards)


class Steps:
    """The action tokens of each row moved to its front, and back: there, time is the column index.

    Rows without holes are there already. Whatever `compact` returns is a fresh tensor, so the callers work in place: at
    a thousand rows of 8k tokens most of the time would otherwise go into allocating temporaries.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = as_bool(mask)
        self.slot: Tensor | None = None
        if bool(
            (self.mask[:, 1:] > self.mask[:, :-1]).any()
        ):  # a hole: a mask-1 token after a mask-0 one
            # the k-th action goes to column k (column 0 is never read), mask-0 tokens to a spare one past the end: 0
            self.slot = self.mask.long().cumsum_(1).masked_fill_(~self.mask, mask.shape[1] + 1)

    def compact(self, x: Tensor) -> Tensor:
        x = keep(x, self.mask).to(
            torch.promote_types(_float(x), torch.float32)
        )  # bfloat16 cannot add up a long response
        if self.slot is None:
            return x
        width = -(-(x.shape[1] + 2) // _BLOCK) * _BLOCK
        return x.new_zeros(x.shape[0], width).scatter_(1, self.slot, x)

    def expand(self, x: Tensor, like: Tensor) -> Tensor:
        """Back, in the dtype of `like`."""
        # past the last action every recursion here gives 0, so nothing has to be masked again
        return (x if self.slot is None else x.gather(1, self.slot)).to(_float(like))

    def add_at_end(self, x: Tensor, amount: Tensor) -> None:
        """Adds `amount` [B] to the last action of each row; a row without one gets nothing."""
        if not x.numel():
            return
        count = self.mask.sum(1)
        last = (count - (1 if self.slot is None else 0)).clamp(min=0).unsqueeze(1)
        x.scatter_add_(1, last, keep(amount.to(x.dtype), count).unsqueeze(1))


def _float(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def _td_errors(
    steps: Steps, rewards: Tensor, values: Tensor, gamma: float, bootstrap: Tensor | None
) -> Tensor:
    deltas = rewards.sub_(values)
    deltas[:, :-1].add_(values[:, 1:], alpha=gamma)  # V(s_n); 0 after the last action
    if bootstrap is not None:
        steps.add_at_end(deltas, gamma * bootstrap)
    return deltas


def _discounted_suffix_sum(x: Tensor, decay: float | Tensor) -> Tensor:
    """y_t = x_t + decay·y_{t+1} along the last axis, exactly, in O(log T) kernels whatever T is; `decay` may differ by row, [B].

    Blocks of 64 columns are summed by one triangular matmul, the same scan with decay^64 carries block heads to the
    left, and each block adds the carry that enters from its right.
    """
    rows, length = x.shape
    if x.numel() == 0:
        return x
    if x.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return _discounted_suffix_sum(
            x.double(), decay
        ).float()  # a script that allows TF32 did not mean this sum
    width = min(_BLOCK, length)
    step = torch.arange(width, device=x.device)
    gap = step[:, None] - step[None, :]  # from column j (row of the matrix) back to column i
    base = (
        decay.to(x.device, torch.float64)[:, None, None] if isinstance(decay, Tensor) else decay
    )  # [B, 1, 1]
    powers = torch.where(gap >= 0, base ** gap.clamp(min=0).to(torch.float64), 0.0).to(
        x.dtype
    )  # [width, width], or one for each row
    padded = torch.nn.functional.pad(x, (0, -length % width)) if length % width else x
    blocks = (
        padded.reshape(-1, width) if powers.dim() == 2 else padded.reshape(rows, -1, width)
    ) @ powers
    blocks = blocks.view(rows, -1, width)  # [B, blocks, width]
    if blocks.shape[1] > 1:
        carry = _discounted_suffix_sum(
            blocks[:, :, 0], decay**width
        )  # y at each block's first column
        fade = (base ** (width - step).to(torch.float64)).to(x.dtype)
        blocks[:, :-1].addcmul_(
            carry[:, 1:, None], fade
        )  # what enters each block from the next one's first column
    return blocks.view(rows, -1)[:, :length]
