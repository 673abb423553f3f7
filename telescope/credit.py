"""Credit: from scores, log-probs and values to the advantage of every token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from telescope.algorithms import (
    Credit,
    dr_grpo,
    gae,
    gdpo,
    grpo,
    grpo_passk,
    kl_penalty,
    last_actions,
    length_adaptive_lam,
    masked_mean,
    masked_var,
    masked_whiten,
    monte_carlo_returns,
    opo,
    optimal_token_baseline,
    remax,
    rloo,
    spread,
    td_errors,
    whitening,
)
from telescope.batch import TokenBatch
from telescope.config import CreditConfig

Estimator = Callable[[TokenBatch, CreditConfig], Credit]
"""(batch with token_level_rewards, deltas, values and bootstrap, config) -> raw advantages and returns, both [B, T]."""


def _gae(batch: TokenBatch, config: CreditConfig) -> Credit:
    """With `lam_critic` the critic's targets have a λ of their own: Yuan et al. 2025, arXiv:2503.01491."""
    lam = (
        config.lam
        if config.lam_alpha is None
        else length_adaptive_lam(batch.mask, alpha=config.lam_alpha)
    )
    given = batch["token_level_rewards"], batch["values"], batch.mask
    advantages, returns = gae(*given, gamma=config.gamma, lam=lam, bootstrap=batch["bootstrap"])
    if config.lam_critic is not None:
        _, returns = gae(
            *given, gamma=config.gamma, lam=config.lam_critic, bootstrap=batch["bootstrap"]
        )
    return Credit(advantages, returns)


def _monte_carlo(batch: TokenBatch, config: CreditConfig) -> Credit:
    returns = monte_carlo_returns(
        batch["token_level_rewards"], batch.mask, gamma=config.gamma, bootstrap=batch["bootstrap"]
    )
    return Credit(returns - batch["values"], returns)


def _td0(batch: TokenBatch, config: CreditConfig) -> Credit:
    return Credit(batch["deltas"], batch["deltas"] + batch["values"])


def _by_group(compare: Callable[[Tensor, Tensor, Tensor], Credit]) -> Estimator:
    """An estimator that needs nothing but the rewards and who answered the same prompt."""
    return lambda batch, config: compare(batch["token_level_rewards"], batch.mask, batch["group"])


def _reinforce(batch: TokenBatch, config: CreditConfig) -> Credit:
    """REINFORCE++: what came from token t on, whitened over the batch. Hu et al. 2025, arXiv:2501.03262."""
    returns = monte_carlo_returns(batch["token_level_rewards"], batch.mask, gamma=config.gamma)
    return Credit(returns, returns)


def _remax(batch: TokenBatch, config: CreditConfig) -> Credit:
    return remax(
        batch["token_level_rewards"], batch["greedy_score"], batch.mask, gamma=config.gamma
    )


def _gdpo(batch: TokenBatch, config: CreditConfig) -> Credit:
    scores = batch.scores
    by_part = [[row.parts[name] for row in scores] for name in scores[0].parts]
    parts = torch.tensor(by_part, device=batch.mask.device).T  # [B, K]
    weights = torch.tensor(list(scores[0].weights.values()))
    return gdpo(parts, weights, batch.mask, batch["group"])


def _optimal_token_baseline(batch: TokenBatch, config: CreditConfig) -> Credit:
    rewards, log_probs = batch["token_level_rewards"], batch["old_log_probs"]
    return optimal_token_baseline(
        rewards, log_probs, batch["sum_pi_squared"], batch.mask, batch["group"]
    )


def _uniform(batch: TokenBatch, config: CreditConfig) -> Credit:
    return spread(batch["token_level_rewards"], batch.mask.float(), batch.mask)


def _last_token(batch: TokenBatch, config: CreditConfig) -> Credit:
    return spread(batch["token_level_rewards"], last_actions(batch.mask, config.last_k), batch.mask)


def _attention(batch: TokenBatch, config: CreditConfig) -> Credit:
    return spread(batch["token_level_rewards"], batch["attention"], batch.mask)


ESTIMATORS: dict[str, Estimator] = {
    "gae": _gae,
    "monte_carlo": _monte_carlo,
    "td0": _td0,
    "grpo": _by_group(grpo),
    "dr_grpo": _by_group(dr_grpo),
    "rloo": _by_group(rloo),
    "reinforce++": _reinforce,
    "reinforce++_baseline": _by_group(dr_grpo),  # whitened over the batch
    "remax": _remax,
    "opo": _by_group(opo),
    "grpo_passk": _by_group(grpo_passk),
    "gdpo": _gdpo,
    "optimal_token_baseline": _optimal_token_baseline,
    "uniform": _uniform,
    "last_token": _last_token,
    "attention": _attention,
}


@torch.no_grad()
def compute_advantages(batch: TokenBatch, config: CreditConfig, *, kl_coef: float) -> TokenBatch:
    """Adds kl, token_level_rewards, deltas, advantages, returns, whitened; without a critic baselines and scale, where it has them.

    r_t = score_t − β·kl_t      δ_t, A_t, R_t by the estimator      Â_t = (A_t − μ)/σ over the whole batch
    """
    batch = batch.with_columns(
        kl=kl_penalty(batch["old_log_probs"], batch["ref_log_prob"], config.kl_kind)
    )
    batch = batch.with_columns(
        token_level_rewards=batch["token_level_scores"] - kl_coef * batch["kl"]
    )
    batch = batch.with_columns(
        deltas=td_errors(
            batch["token_level_rewards"],
            batch["values"],
            batch.mask,
            gamma=config.gamma,
            bootstrap=batch["bootstrap"],
        )
    )
    credit = ESTIMATORS[config.estimator](batch, config)
    advantages = credit.advantages
    mean, std = (
        whitening(advantages, batch.mask)
        if config.whitens
        else (torch.tensor(0.0), torch.tensor(1.0))
    )
    whitened = masked_whiten(advantages, batch.mask) if config.whitens else advantages
    per_row = {"whiten_mean": mean, "whiten_std": std}
    return batch.with_columns(
        **{name: value for name, value in credit._asdict().items() if value is not None},
        whitened=whitened,
        **{name: value.to(advantages).expand(len(batch)) for name, value in per_row.items()},
    )


def credit_metrics(batch: TokenBatch) -> dict[str, float]:
    """What the batch looks like, every mean over the tokens the policy wrote (or over rows, for scores and lengths)."""
    mask, rows = batch.mask, max(len(batch), 1)
    unexplained = masked_var(batch["returns"] - batch["values"], mask)
    spread = masked_var(batch["returns"], mask)
    metrics: dict[str, Tensor | float] = {
        "reward/score_mean": sum(scores.total for scores in batch.scores) / rows,
        "reward/kl": masked_mean(batch["kl"], mask),
        "reward/token_reward_mean": masked_mean(batch["token_level_rewards"], mask),
        "critic/value_mean": masked_mean(batch["values"], mask),
        "critic/return_mean": masked_mean(batch["returns"], mask),
        "critic/explained_variance": 1 - unexplained / spread if float(spread) > 0 else 0.0,
        "credit/advantage_mean": masked_mean(batch["advantages"], mask),
        "credit/advantage_std": masked_var(batch["advantages"], mask).sqrt(),
        "response/length_mean": mask.sum() / rows,
        "response/truncated": batch["truncated"].sum() / rows,
    }
    for name, values in _info_columns(batch).items():
        metrics[name] = sum(values) / rows
    return {name: float(value) for name, value in metrics.items()}


def _info_columns(batch: TokenBatch) -> dict[str, list[float]]:
    """Metrics of each row that are not tensors: tool calls, parts of the score, shaping."""
    columns: dict[str, list[float]] = {}
    for row in batch.info:
        found: dict[str, float | None] = {}
        if row.tools is not None:
            found["response/tool_calls"] = row.tools.calls
            found["response/tool_failures"] = row.tools.failures
        if row.scores is not None:
            found |= {f"reward/{name}": part for name, part in row.scores.parts.items()}
        if row.shaped is not None:
            found["reward/shaped_mean"] = row.shaped.paid
            found["reward/norm_mean"] = row.shaped.norm_mean
            found["reward/norm_std"] = row.shaped.norm_std
            found["reward/clipped"] = row.shaped.clipped
        for name, value in found.items():
            if value is not None:
                columns.setdefault(name, []).append(value)
    return columns
