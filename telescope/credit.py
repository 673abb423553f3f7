"""Credit: from scores, log-probs and values to the advantage of every token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from telescope.algorithms import gae, kl_penalty, masked_mean, masked_var, masked_whiten, monte_carlo_returns, td_errors, whitening
from telescope.batch import TokenBatch
from telescope.config import CreditConfig

Estimator = Callable[[TokenBatch, CreditConfig], tuple[Tensor, Tensor]]
"""(batch with token_level_rewards, values and bootstrap, config) -> (raw advantages, returns), both [B, T]."""


def _gae(batch: TokenBatch, config: CreditConfig) -> tuple[Tensor, Tensor]:
    return gae(batch["token_level_rewards"], batch["values"], batch.mask, gamma=config.gamma, lam=config.lam, bootstrap=batch["bootstrap"])


def _monte_carlo(batch: TokenBatch, config: CreditConfig) -> tuple[Tensor, Tensor]:
    returns = monte_carlo_returns(batch["token_level_rewards"], batch.mask, gamma=config.gamma, bootstrap=batch["bootstrap"])
    return returns - batch["values"], returns


def _td0(batch: TokenBatch, config: CreditConfig) -> tuple[Tensor, Tensor]:
    return batch["deltas"], batch["deltas"] + batch["values"]


ESTIMATORS: dict[str, Estimator] = {
    "gae": _gae,
    "monte_carlo": _monte_carlo,
    "td0": _td0,
}


@torch.no_grad()
def compute_advantages(batch: TokenBatch, config: CreditConfig, *, kl_coef: float) -> TokenBatch:
    """Adds kl, token_level_rewards, deltas, advantages, returns, whitened.

    r_t = score_t − β·kl_t      δ_t, A_t, R_t by the estimator      Â_t = (A_t − μ)/σ over the whole batch
    """
    batch = batch.with_columns(kl=kl_penalty(batch["old_log_probs"], batch["ref_log_prob"], config.kl_kind))
    batch = batch.with_columns(token_level_rewards=batch["token_level_scores"] - kl_coef * batch["kl"])
    batch = batch.with_columns(
        deltas=td_errors(batch["token_level_rewards"], batch["values"], batch.mask, gamma=config.gamma, bootstrap=batch["bootstrap"])
    )
    advantages, returns = ESTIMATORS[config.estimator](batch, config)
    mean, std = whitening(advantages, batch.mask) if config.whiten else (torch.tensor(0.0), torch.tensor(1.0))
    whitened = masked_whiten(advantages, batch.mask) if config.whiten else advantages
    per_row = {"whiten_mean": mean, "whiten_std": std}
    return batch.with_columns(
        advantages=advantages,
        returns=returns,
        whitened=whitened,
        **{name: value.to(advantages).expand(len(batch)) for name, value in per_row.items()},
    )


def credit_metrics(batch: TokenBatch) -> dict[str, float]:
    """What the batch looks like, every mean over the tokens the policy wrote (or over rows, for scores and lengths)."""
    mask, rows = batch.mask, max(len(batch), 1)
    unexplained = masked_var(batch["returns"] - batch["values"], mask)
    spread = masked_var(batch["returns"], mask)
    metrics = {
        "reward/score_mean": sum(batch.info["score"]) / rows,
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
    for name, values in batch.info.items():
        if name.startswith("score/"):
            metrics[f"reward/{name.removeprefix('score/')}"] = sum(values) / rows
    return {name: float(value) for name, value in metrics.items()}
