"""Advantages without a critic: a response's outcome, compared with other responses.

A response's outcome o is the sum of its rewards. Responses of one prompt share a number in `group`
[B], wherever in the batch they stand. A group of one has nothing to be compared with: its baseline
is 0. Positions where the mask is 0 are never read, and results are 0 there.

Statistics are taken in float64, as differences from the group's best, so that equal outcomes give
exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from telescope.algorithms.advantages import ActionOrder, monte_carlo_returns
from telescope.algorithms.masked import as_bool, keep, masked_sum

EPS = 1e-6
"""Added to a group's standard deviation. Also the rounding error of one token's squared norm."""


_SPREAD = 1e-6
"""Scores that differ by less are equal: the difference is rounding."""


def is_flat(scores: Sequence[float]) -> bool:
    """Whether a group's scores are all the same, so that comparing them teaches nothing."""
    return max(scores) - min(scores) <= _SPREAD


class Credit(NamedTuple):
    """What an estimator returns. Without a critic, A[i] = (outcome[i] − b[i])/scale."""

    advantages: Tensor
    """[B, T], raw: whitening is the caller's next line."""
    returns: Tensor
    """[B, T]"""
    baselines: Tensor | None = None
    """b[i], what the outcome was compared with, [B, T]."""
    scale: Tensor | None = None
    """What the difference was divided by, [B]."""


def grpo(rewards: Tensor, mask: Tensor, group: Tensor, *, leave_one_out: bool = False) -> Credit:
    """Group-relative advantage, the same for every token of the response.

        A[i] = (o − μ) / (σ + 1e-6)

    μ and σ are the mean and the standard deviation (n − 1) of the group's outcomes, or with
    `leave_one_out` of its other outcomes. If those are equal, the difference is not divided.
    Shao et al. 2024, arXiv:2402.03300; leave one out: as in NeMo-RL.
    """
    groups = Groups(group)
    outcome = masked_sum(rewards, mask, -1)
    if leave_one_out:
        baseline, std = groups.others(outcome)
        away = (outcome.double().cpu() - groups.mean(outcome)).abs()
        scale = torch.where(std > EPS * (1 + away), std + EPS, 1.0)
        return _everywhere(outcome, baseline, scale, mask)
    return _everywhere(outcome, groups.mean(outcome), groups.std(outcome) + EPS, mask)


def maxrl(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """The outcome less the group's mean, in units of that mean, for outcomes that are not negative.

        A[i] = (o − μ) / (μ + 1e-6)      0 where μ ≤ 0

    With outcomes 0 and 1, μ is the share of successes, and this follows the gradient of its
    logarithm. Tajwar et al. 2026, arXiv:2602.02710.
    """
    outcome = masked_sum(rewards, mask, -1)
    mean = Groups(group).mean(outcome)
    baseline = torch.where(mean > 0, mean, outcome.double().cpu())
    return _everywhere(outcome, baseline, torch.where(mean > 0, mean + EPS, 1.0), mask)


def dr_grpo(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """GRPO without the division by σ.

        A[i] = o − μ

    μ is the mean of the group's outcomes. Dividing by σ would favour questions that are nearly
    always or nearly never answered right. Liu et al. 2025, arXiv:2503.20783. Whitened over the
    batch, this is REINFORCE++ with baseline: Hu et al. 2025, arXiv:2501.03262.
    """
    outcome = masked_sum(rewards, mask, -1)
    return _everywhere(outcome, Groups(group).mean(outcome), None, mask)


def rloo(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Leave one out: the outcome less the mean of the group's OTHER outcomes.

        A[i] = n/(n−1) · (o − μ)

    n is the size of the group, μ its mean. Ahmadian et al. 2024, arXiv:2402.14740.
    """
    outcome = masked_sum(rewards, mask, -1)
    baseline, _ = Groups(group).others(outcome)
    return _everywhere(outcome, baseline, None, mask)


def opo(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """The outcome less the optimal baseline if a gradient's variance grows with length.

        A[i] = o − Σ_j l_j·o_j / Σ_j l_j

    i runs over the group; l_i is the number of actions of response i. A group without a single
    action has baseline 0. Hao et al. 2025, arXiv:2505.23585.
    """
    outcome = masked_sum(rewards, mask, -1)
    length = as_bool(mask).sum(-1)
    return _everywhere(outcome, Groups(group).mean(outcome, length), None, mask)


def grpo_passk(rewards: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Credit for what the best response adds to the group's best; the others get 0.

        A[i] = (best − second best) / (σ + 1e-6)

    σ is the standard deviation of the group's outcomes. Tang et al. 2025, arXiv:2503.19595.
    """
    groups = Groups(group)
    outcome = masked_sum(rewards, mask, -1)
    is_best, second = groups.best_two(outcome)
    baseline = torch.where(is_best, second, outcome.double().cpu())
    return _everywhere(outcome, baseline, groups.std(outcome) + EPS, mask)


def gdpo(parts: Tensor, weights: Tensor, mask: Tensor, group: Tensor) -> Credit:
    """Each part of the reward, compared within its group by itself.

        A[i] = Σ_k w_k · (s_k − μ_k) / (σ_k + 1e-6)

    s_k is part k of the response's score (`parts` [B, K]), w_k its weight (`weights` [K]), μ_k and
    σ_k the group's mean and standard deviation of that part. One part's spread cannot drown
    another's. The caller whitens over the batch: by default over its tokens, as verl does; the
    paper (eq. 6) does so over its responses. Liu et al. 2026, arXiv:2601.05242.
    """
    groups = Groups(group)
    total = torch.zeros(parts.shape[0], dtype=torch.float64)
    for part, weight in zip(parts.unbind(1), weights.tolist(), strict=True):
        total += weight * (part.double().cpu() - groups.mean(part)) / (groups.std(part) + EPS)
    credit = _everywhere(total.to(parts), torch.zeros_like(total), None, mask)
    return Credit(credit.advantages, credit.returns)


def remax(rewards: Tensor, greedy_score: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Credit:
    """The return less the score of the greedy response to the same prompt.

        A[i] = G[i] − greedy_score

    `greedy_score` is [B]. Li et al. 2024, arXiv:2310.10505.
    """
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
    """The return less the baseline of least variance, token by token; i counts actions.

        A[i] = G[i] − b[i]      b[i] = Σ W[i]·G[i] / Σ W[i]
        W[i] = Σ_{k≤i} (1 − 2π_k + Σ_v π_k(v)²)

    The sums of b[i] run over the responses of the group that have an action i. W[i] is the squared
    norm of the score function's logit gradient up to t. `weights` are importance weights, which
    enter W[i] squared. `sum_pi_squared` is Σ_v π_k(v)².

    If Σ W[i] is no more than rounding (1e-6 for each of its tokens: the policy was sure of them
    all), b[i] is the plain mean. If only one response is that long, there is nothing to compare it
    with and b[i] is 0. Li et al. 2026, arXiv:2602.07078.
    """
    order = ActionOrder(mask)
    groups = Groups(group)
    returns = monte_carlo_returns(rewards, mask, gamma=1.0)
    scale = torch.ones_like(returns, dtype=torch.float64)
    if weights is not None:
        scale = weights.double() ** 2
    norm = 1 - 2 * old_log_probs.double().exp() + sum_pi_squared.double()
    norm = norm.clamp(min=0)  # below 0 is rounding

    # From here on [B, T] in action order.
    here = order.compact(torch.ones_like(scale)).cpu()
    w = order.compact(scale * norm).cpu().cumsum(1) * here
    noise = order.compact(scale * EPS).cpu().cumsum(1) * here
    w = torch.where(groups.sum(w) > groups.sum(noise), w, here)
    g = order.compact(returns).double().cpu()
    top = groups.best(g.masked_fill(here == 0, -torch.inf))
    baselines = top + groups.sum(w * (g - top)) / groups.sum(w)
    has_others = (groups.sum(here) > 1) & (here > 0)
    baselines = torch.where(has_others, baselines, 0.0)

    baselines = order.expand(baselines.to(returns), returns)
    return Credit(returns - baselines, returns, baselines)


def spread(rewards: Tensor, weights: Tensor, mask: Tensor) -> Credit:
    """The outcome, divided over the tokens by weights w[i] ≥ 0. The shares add up to the outcome.

        A[i] = w[i] / Σ w · o

    Equal weights: every token did as much. 1 on the last k tokens: only the end counts. A reward
    model's attention: what it looked at. Weights that are all 0 count as equal.
    """
    w = keep(weights, mask).double()  # the sum of float32 weights may overflow
    w = torch.where(w.sum(-1, keepdim=True) == 0, as_bool(mask).double(), w)
    share = w / w.sum(-1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)
    outcome = masked_sum(rewards, mask, -1)
    advantages = share.to(rewards.dtype) * outcome[:, None]
    return Credit(advantages, advantages)


def last_actions(mask: Tensor, k: int = 1) -> Tensor:
    """1 on the last k valid tokens of each row (on all of them if there are fewer), [B, T]."""
    counted = as_bool(mask).long().cumsum(-1)
    is_last = as_bool(mask) & (counted > counted[..., -1:] - k)
    return is_last.to(torch.get_default_dtype())


class Groups:
    """Statistics over the rows of each group, one result for every row.

    Computed on the CPU, where sums come out the same every time.
    """

    def __init__(self, group: Tensor) -> None:
        names: dict[float, int] = {}
        numbered = [names.setdefault(name, len(names)) for name in group.tolist()]
        self.of = torch.tensor(numbered, dtype=torch.long)
        """Number of each row's group, [B]."""
        self.count = len(names)
        """Number of groups."""
        self.size = torch.bincount(self.of, minlength=self.count)[self.of].double()
        """Rows in each row's group, [B]."""
        self.alone = self.size == 1

    def sum(self, x: Tensor) -> Tensor:
        """Sum of the group, [B, ...]."""
        totals = x.new_zeros(self.count, *x.shape[1:]).index_add_(0, self.of, x)
        return totals[self.of]

    def mean(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Mean of the group, or its weighted mean, [B].

        0 in a group of one, and where the weights are all 0.
        """
        x = x.double().cpu()
        w = torch.ones(len(x)).double() if weights is None else weights.double().cpu()
        top = self.best(x)
        total = self.sum(w)
        mean = top + self.sum(w * (x - top)) / total.clamp(min=1)
        return torch.where(self.alone | (total == 0), 0.0, mean)

    def std(self, x: Tensor) -> Tensor:
        """Standard deviation of the group (n − 1), [B]; 1 in a group of one."""
        off = x.double().cpu() - self.mean(x)
        std = (self.sum(off**2) / (self.size - 1).clamp(min=1)).sqrt()
        return torch.where(self.alone, 1.0, std)

    def others(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the group's other rows, both [B].

        The mean is 0 where there are none, the deviation 0 where there is but one.
        """
        off = x.double().cpu() - self.mean(x)
        rest = (self.size - 1).clamp(min=1)
        mean = self.mean(x) - off / rest
        squares = self.sum(off**2) - off**2 * self.size / rest
        std = (squares / (rest - 1).clamp(min=1)).clamp(min=0).sqrt()
        return torch.where(self.alone, 0.0, mean), std

    def best_two(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Whether a row is its group's best, and the best of the group's other rows, both [B].

        Of equal rows the first is the best. The second result is 0 in a group of one.
        """
        x = x.double().cpu()
        place = torch.arange(len(x))
        nowhere = len(x)
        candidates = torch.where(x == self.best(x), place, nowhere)
        first = torch.full((self.count,), nowhere).scatter_reduce(0, self.of, candidates, "amin")
        is_best = first[self.of] == place
        second = self.best(x.masked_fill(is_best, -torch.inf))
        return is_best, torch.where(self.alone, 0.0, second)

    def best(self, x: Tensor) -> Tensor:
        """Maximum of the group, [B, ...]."""
        of = self.of.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        lowest = x.new_full((self.count, *x.shape[1:]), -torch.inf)
        return lowest.scatter_reduce(0, of, x, "amax")[self.of]


def _everywhere(outcome: Tensor, baseline: Tensor, scale: Tensor | None, mask: Tensor) -> Credit:
    """(outcome − baseline)/scale on every token of the row."""
    if scale is None:
        scale = torch.ones_like(baseline)

    def on_every_token(x: Tensor) -> Tensor:
        return keep(x.to(outcome)[:, None].expand(mask.shape), mask)

    advantages = on_every_token((outcome.double().cpu() - baseline) / scale)
    return Credit(advantages, advantages, on_every_token(baseline), scale.to(outcome))
