"""Advantages without a critic: what a response earned, compared with something that is not a learned value.

Responses of one prompt share a number in `group` [B], wherever in the batch they stand. A response's outcome is the sum of its
rewards. What stands off the mask is never read; results are 0 there. A group of one has nothing to be compared with: its
baseline is 0. Statistics are taken in float64 and as differences from the group's best, so that equal outcomes give exactly 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from telescope.algorithms.advantages import Steps, monte_carlo_returns
from telescope.algorithms.masked import as_bool, keep, masked_sum

EPS = 1e-6
"""Added to a group's standard deviation. What a token's squared norm may owe to rounding."""


class Credit(NamedTuple):
    """What an estimator makes. Without a critic also what the outcome was compared with: A_t = (outcome_t − b_t)/scale."""

    advantages: Tensor
    """[B, T], raw: whitening is the caller's next line."""
    returns: Tensor
    """[B, T]"""
    baselines: Tensor | None = None
    """b_t, [B, T]."""
    scale: Tensor | None = None
    """[B]"""


def grpo(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Group-relative: A_t = (o − mean)/(σ + 1e-6), the group's mean and standard deviation (n − 1), for every token of the response.

    Shao et al. 2024, arXiv:2402.03300.
    """
    of, outcome = Groups(group), masked_sum(rewards, mask, -1)
    return _everywhere(outcome, of.mean(outcome), of.std(outcome) + EPS, mask)


def dr_grpo(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """A_t = o − mean of the group. Not divided by σ, which favours questions that are nearly always or nearly never answered.

    Liu et al. 2025, arXiv:2503.20783. Whitened over the batch it is REINFORCE++ with baseline: Hu et al. 2025, arXiv:2501.03262.
    """
    outcome = masked_sum(rewards, mask, -1)
    return _everywhere(outcome, Groups(group).mean(outcome), None, mask)


def rloo(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Leave one out: A_t = o − mean of the OTHERS of the group = n/(n−1)·(o − mean). Ahmadian et al. 2024, arXiv:2402.14740."""
    of, outcome = Groups(group), masked_sum(rewards, mask, -1)
    own = of.size / (of.size - 1).clamp(min=1)
    return _everywhere(
        outcome,
        torch.where(of.alone, 0.0, outcome.cpu() - own * (outcome.cpu() - of.mean(outcome))),
        None,
        mask,
    )


def opo(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Optimal baseline where a gradient's variance grows with length: A_t = o − Σ l·o / Σ l over the group, l the tokens of each.

    Hao et al. 2025, arXiv:2505.23585. A group without a single token has baseline 0.
    """
    outcome = masked_sum(rewards, mask, -1)
    return _everywhere(outcome, Groups(group).mean(outcome, as_bool(mask).sum(-1)), None, mask)


def grpo_passk(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Credit for being the best of k: the best response gets (best − second best)/(σ + 1e-6), the others 0.

    What it adds to the group's best. Tang et al. 2025, arXiv:2503.19595.
    """
    of, outcome = Groups(group), masked_sum(rewards, mask, -1)
    best, second = of.best_two(outcome)
    return _everywhere(
        outcome, torch.where(best, second, outcome.double().cpu()), of.std(outcome) + EPS, mask
    )


def gdpo(parts: Tensor, weights: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Each part of the reward [B, K] is compared within its group by itself: A_t = Σ_k w_k·(s_k − mean_k)/(σ_k + 1e-6).

    So that one part's spread cannot drown another's. Whitened over the batch afterwards. Liu et al. 2026, arXiv:2601.05242.
    """
    of = Groups(group)
    total = torch.zeros(parts.shape[0], dtype=torch.float64)
    for part, weight in zip(parts.unbind(1), weights.tolist(), strict=True):
        total += weight * (part.double().cpu() - of.mean(part)) / (of.std(part) + EPS)
    credit = _everywhere(total.to(parts), torch.zeros_like(total), None, mask)
    return Credit(credit.advantages, credit.returns)


def remax(rewards: Tensor, greedy_score: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Credit:
    """A_t = G_t − the score of the greedy response to the same prompt, [B]. Li et al. 2024, arXiv:2310.10505."""
    returns = monte_carlo_returns(rewards, mask, gamma=gamma)
    baselines = keep(greedy_score.to(returns)[:, None].expand_as(returns), mask)
    return Credit(returns - baselines, returns, baselines)


def optimal_token_baseline(
    rewards: Tensor,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    mask: Tensor,
    group: Tensor,
    *,
    weights: Tensor | None = None,
) -> Credit:
    """A_t = G_t − b_t, b_t = Σ W_t·G_t / Σ W_t over the responses of the group that have a t-th action.

    W_t = Σ_{k≤t} (1 − 2π_k + Σ_v π_k(v)²): the squared norm of the score function's logit gradient up to t, so that b_t is the
    baseline with the least variance. `weights` are importance weights, which enter squared. Where Σ W_t is no more than rounding
    (1e-6 for each of its tokens: the policy was sure of them all) b_t is the plain mean. Where only the longest response is left
    there is nothing to compare it with: b_t = 0. Time is counted in actions. Li et al. 2026, arXiv:2602.07078.
    """
    steps, of = Steps(mask), Groups(group)
    returns = monte_carlo_returns(rewards, mask, gamma=1.0)
    scale = (
        torch.ones_like(returns, dtype=torch.float64) if weights is None else weights.double() ** 2
    )
    norm = (1 - 2 * old_log_probs.double().exp() + sum_pi_squared.double()).clamp(
        min=0
    )  # below 0 is rounding
    here = steps.compact(torch.ones_like(scale)).cpu()  # [B, T], by action, as all below
    w, noise = (steps.compact(x).cpu().cumsum(1) * here for x in (scale * norm, scale * EPS))
    w = torch.where(of.sum(w) > of.sum(noise), w, here)
    g = steps.compact(returns).double().cpu()
    top = of.best(g.masked_fill(here == 0, -torch.inf))
    baselines = top + of.sum(w * (g - top)) / of.sum(w)
    baselines = torch.where((of.sum(here) > 1) & (here > 0), baselines, 0.0)
    baselines = steps.expand(baselines.to(returns), returns)
    return Credit(returns - baselines, returns, baselines)


def spread(rewards: Tensor, weights: Tensor, mask: Tensor) -> Credit:
    """The outcome, divided over the tokens by weights ≥ 0: A_t = w_t/Σw · o. The shares add up to the outcome.

    Equal weights: every token did as much; 1 on the last k tokens: only the end counts; a reward model's attention: what it looked at.
    Weights that are all 0 count as equal.
    """
    w = keep(weights, mask).double()  # whose sum does not overflow
    w = torch.where(w.sum(-1, keepdim=True) == 0, as_bool(mask).double(), w)
    share = w / w.sum(-1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)
    advantages = share.to(rewards.dtype) * masked_sum(rewards, mask, -1)[:, None]
    return Credit(advantages, advantages)


def last_actions(mask: Tensor, k: int = 1) -> Tensor:
    """1 on the last k mask-1 positions of each row, on all of them where there are fewer, [B, T]."""
    counted = as_bool(mask).long().cumsum(-1)
    return (as_bool(mask) & (counted > counted[..., -1:] - k)).to(torch.get_default_dtype())


class Groups:
    """Statistics over the rows of each group, handed back to every row of it. On the CPU, where sums come out the same every time."""

    def __init__(self, group: Tensor) -> None:
        names: dict[float, int] = {}
        self.of = torch.tensor(
            [names.setdefault(name, len(names)) for name in group.tolist()], dtype=torch.long
        )
        self.count = len(names)
        self.size = torch.bincount(self.of, minlength=self.count)[self.of].double()  # [B]
        self.alone = self.size == 1

    def sum(self, x: Tensor) -> Tensor:
        """[B, ...]"""
        return x.new_zeros(self.count, *x.shape[1:]).index_add_(0, self.of, x)[self.of]

    def mean(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """[B], weighted if weights are given; 0 in a group of one, and where the weights are all 0."""
        x, w = (
            x.double().cpu(),
            torch.ones(len(x)).double() if weights is None else weights.double().cpu(),
        )
        top, total = self.best(x), self.sum(w)
        mean = top + self.sum(w * (x - top)) / total.clamp(min=1)
        return torch.where(self.alone | (total == 0), 0.0, mean)

    def std(self, x: Tensor) -> Tensor:
        """[B], with n − 1; 1 in a group of one."""
        off = x.double().cpu() - self.mean(x)
        return torch.where(
            self.alone, 1.0, (self.sum(off**2) / (self.size - 1).clamp(min=1)).sqrt()
        )

    def best_two(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which row is the first of its group's best, and the best of the others, both [B]; 0 where there is no other."""
        x = x.double().cpu()
        first = torch.full((self.count,), len(x)).scatter_reduce(
            0, self.of, torch.where(x == self.best(x), torch.arange(len(x)), len(x)), "amin"
        )
        best = first[self.of] == torch.arange(len(x))
        return best, torch.where(self.alone, 0.0, self.best(x.masked_fill(best, -torch.inf)))

    def best(self, x: Tensor) -> Tensor:
        """[B, ...]"""
        of = self.of.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        return x.new_full((self.count, *x.shape[1:]), -torch.inf).scatter_reduce(0, of, x, "amax")[
            self.of
        ]


def _everywhere(outcome: Tensor, baseline: Tensor, scale: Tensor | None, mask: Tensor) -> Credit:
    """(outcome − baseline)/scale on every token of the row."""
    scale = torch.ones_like(baseline) if scale is None else scale

    def row(x: Tensor) -> Tensor:
        return keep(x.to(outcome)[:, None].expand(mask.shape), mask)

    advantages = row((outcome.double().cpu() - baseline) / scale)
    return Credit(advantages, advantages, row(baseline), scale.to(outcome))
