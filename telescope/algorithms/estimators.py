"""The tensor functions of the estimators: from a batch and settings to `Credit`.

Each is named by its definition in telescope.algorithms.definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from telescope.algorithms.advantages import (
    gae,
    length_adaptive_lam,
    monte_carlo_returns,
    n_step_advantages,
)
from telescope.algorithms.groups import (
    Credit,
    dr_grpo,
    gdpo,
    grpo,
    grpo_passk,
    last_actions,
    maxrl,
    opo,
    optimal_token_baseline,
    remax,
    rloo,
    spread,
)


class Columns(Protocol):
    """What an estimator sees of a batch: its columns by name, [B, T] or [B]."""

    @property
    def mask(self) -> Tensor: ...

    @property
    def scores(self) -> Sequence[Any]:
        """One record per row, with `parts` and `weights` by name."""

    def __getitem__(self, name: str) -> Tensor: ...


def gae_credit(batch: Columns, s: Any) -> Credit:
    """With `lam_critic` the critic's targets have a λ of their own: arXiv:2503.01491."""
    lam = s.lam if s.lam_alpha is None else length_adaptive_lam(batch.mask, alpha=s.lam_alpha)
    rewards = batch["token_level_rewards"]
    values = batch["values"]
    bootstrap = batch["bootstrap"]
    advantages, returns = gae(
        rewards, values, batch.mask, gamma=s.gamma, lam=lam, bootstrap=bootstrap
    )
    if s.lam_critic is not None:
        _, returns = gae(
            rewards, values, batch.mask, gamma=s.gamma, lam=s.lam_critic, bootstrap=bootstrap
        )
    return Credit(advantages, returns)


def monte_carlo_credit(batch: Columns, s: Any) -> Credit:
    returns = monte_carlo_returns(
        batch["token_level_rewards"], batch.mask, gamma=s.gamma, bootstrap=batch["bootstrap"]
    )
    return Credit(returns - batch["values"], returns)


def td0_credit(batch: Columns, s: Any) -> Credit:
    return Credit(batch["deltas"], batch["deltas"] + batch["values"])


def n_step_credit(batch: Columns, s: Any) -> Credit:
    advantages = n_step_advantages(
        batch["token_level_rewards"],
        batch["values"],
        batch.mask,
        n=s.n,
        gamma=s.gamma,
        bootstrap=batch["bootstrap"],
    )
    return Credit(advantages, advantages + batch["values"])


def _of_group(compare: Callable[[Tensor, Tensor, Tensor], Credit]) -> Callable[..., Credit]:
    """For an estimator that needs only the rewards and which prompt each response answers."""

    def credit(batch: Columns, s: Any) -> Credit:
        return compare(batch["token_level_rewards"], batch.mask, batch["group"])

    return credit


def grpo_credit(batch: Columns, s: Any) -> Credit:
    return grpo(
        batch["token_level_rewards"], batch.mask, batch["group"], leave_one_out=s.leave_one_out
    )


maxrl_credit = _of_group(maxrl)
dr_grpo_credit = _of_group(dr_grpo)
rloo_credit = _of_group(rloo)
opo_credit = _of_group(opo)
grpo_passk_credit = _of_group(grpo_passk)


def reinforce_credit(batch: Columns, s: Any) -> Credit:
    returns = monte_carlo_returns(batch["token_level_rewards"], batch.mask, gamma=s.gamma)
    return Credit(returns, returns)


def remax_credit(batch: Columns, s: Any) -> Credit:
    rewards = batch["token_level_rewards"]
    return remax(rewards, batch["greedy_score"], batch.mask, gamma=s.gamma)


def gdpo_credit(batch: Columns, s: Any) -> Credit:
    scores = batch.scores
    by_part = [[row.parts[name] for row in scores] for name in scores[0].parts]
    parts = torch.tensor(by_part, device=batch.mask.device).T  # [B, K]
    weights = torch.tensor(list(scores[0].weights.values()))  # [K]
    return gdpo(parts, weights, batch.mask, batch["group"])


def optimal_token_baseline_credit(batch: Columns, s: Any) -> Credit:
    return optimal_token_baseline(
        batch["token_level_rewards"],
        batch["old_log_probs"],
        batch["sum_pi_squared"],
        batch.mask,
        batch["group"],
    )


def uniform_credit(batch: Columns, s: Any) -> Credit:
    return spread(batch["token_level_rewards"], batch.mask.float(), batch.mask)


def last_token_credit(batch: Columns, s: Any) -> Credit:
    weights = last_actions(batch.mask, s.last_k)
    return spread(batch["token_level_rewards"], weights, batch.mask)


def attention_credit(batch: Columns, s: Any) -> Credit:
    return spread(batch["token_level_rewards"], batch["attention"], batch.mask)
