"""Credit: from scores, log-probs and values to the advantage of every token."""

from __future__ import annotations

import torch
from torch import Tensor

from telescope.algorithms import (
    Credit,
    kl_penalty,
    masked_mean,
    masked_var,
    masked_whiten,
    td_errors,
    whitening,
)
from telescope.algorithms.groups import is_flat
from telescope.algorithms.masked import Over
from telescope.batch import TokenBatch
from telescope.config import CreditConfig


@torch.no_grad()
def compute_advantages(batch: TokenBatch, config: CreditConfig, *, kl_coef: float) -> TokenBatch:
    """Adds kl, token_level_rewards, deltas, advantages, returns and whitened.

        r[i] = score[i] − β·kl[i], over σ_r of the batch with `whiten_rewards`
        δ[i] = r[i] + γ·V[i⁺] − V[i]
        A[i], R[i] by the estimator
        Â[i] = (A[i] − μ)/σ over the whole batch

    i⁺ is the next valid token. An estimator without a critic also adds what it compared with:
    baselines and scale. With β = 0 a batch may come without ref_log_prob; it then gets no kl.
    """
    batch = with_rewards(batch, config, kl_coef=kl_coef)
    if config.whiten_rewards:
        batch = _with_whitened_rewards(batch)
    deltas = td_errors(
        batch["token_level_rewards"],
        batch["values"],
        batch.mask,
        gamma=config.gamma,
        bootstrap=batch["bootstrap"],
    )
    batch = batch.with_columns(deltas=deltas)
    credit: Credit = config.definition.implementation()(batch, config)
    made = {name: value for name, value in credit._asdict().items() if value is not None}
    return _whiten(batch.with_columns(**made), config)


def with_rewards(batch: TokenBatch, config: CreditConfig, *, kl_coef: float) -> TokenBatch:
    """Adds token_level_rewards, and kl if there is a reference: r[i] = score[i] − β·kl[i]."""
    rewards = batch["token_level_scores"]
    if kl_coef or "ref_log_prob" in batch:
        kl = kl_penalty(batch["old_log_probs"], batch["ref_log_prob"], config.kl_kind)
        batch = batch.with_columns(kl=kl)
        rewards = rewards - kl_coef * batch["kl"]
    return batch.with_columns(token_level_rewards=rewards)


def _with_whitened_rewards(batch: TokenBatch) -> TokenBatch:
    """r ← μ_r + (r − μ_r)/σ_r over all valid tokens of the batch.

    Ziegler et al. 2019, arXiv:1909.08593 (lm-human-preferences); TRL's whiten_rewards.
    """
    rewards = batch["token_level_rewards"]
    mean, std = whitening(rewards, batch.mask)
    return batch.with_columns(
        token_level_rewards=masked_whiten(rewards, batch.mask, shift_mean=False),
        reward_mean=mean.to(rewards).expand(len(batch)),
        reward_std=std.to(rewards).expand(len(batch)),
    )


def _whiten(batch: TokenBatch, config: CreditConfig) -> TokenBatch:
    """Adds whitened, and the μ and σ that it used, the same in every row."""
    advantages = batch["advantages"]
    if config.whitens:
        # a setting of few estimators
        over: Over = config.whiten_over if hasattr(config, "whiten_over") else "tokens"
        mean, std = whitening(advantages, batch.mask, over=over)
        whitened = masked_whiten(advantages, batch.mask, over=over)
    else:
        mean = torch.tensor(0.0)
        std = torch.tensor(1.0)
        whitened = advantages
    return batch.with_columns(
        whitened=whitened,
        whiten_mean=mean.to(advantages).expand(len(batch)),
        whiten_std=std.to(advantages).expand(len(batch)),
    )


def credit_metrics(
    batch: TokenBatch, config: CreditConfig, *, correct_score: float = 1.0
) -> dict[str, float]:
    """Means over valid tokens; over rows for scores and lengths.

    A response with at least `correct_score` is right.
    """
    mask = batch.mask
    rows = max(len(batch), 1)
    metrics: dict[str, Tensor | float] = {
        "reward/score_mean": sum(scores.total for scores in batch.scores) / rows,
        "reward/token_reward_mean": masked_mean(batch["token_level_rewards"], mask),
        "credit/advantage_mean": masked_mean(batch["advantages"], mask),
        "credit/advantage_std": masked_var(batch["advantages"], mask).sqrt(),
        "response/length_mean": mask.sum() / rows,
        "response/truncated": batch["truncated"].sum() / rows,
    }
    if config.definition.needs.critic:
        metrics["critic/value_mean"] = masked_mean(batch["values"], mask)
        metrics["critic/return_mean"] = masked_mean(batch["returns"], mask)
        metrics["critic/explained_variance"] = _explained_variance(batch)
    groups = _scores_by_group(batch)
    if groups and all(len(scores) > 1 for scores in groups):
        flat = [scores for scores in groups if is_flat(scores)]
        metrics["reward/flat_groups"] = len(flat) / len(groups)
    if "kl" in batch:
        metrics["reward/kl"] = masked_mean(batch["kl"], mask)
    for name, values in (_info_columns(batch) | _right_by_ending(batch, correct_score)).items():
        metrics[name] = sum(values) / len(values)  # a part may not apply to every row
    return {name: float(value) for name, value in metrics.items()}


def _right_by_ending(batch: TokenBatch, correct_score: float) -> dict[str, list[float]]:
    """Which responses are right: of those that were cut off, and of the finished ones."""
    found: dict[str, list[float]] = {}
    for is_cut, scores in zip(batch["truncated"].tolist(), batch.scores, strict=True):
        name = "response/right_truncated" if is_cut else "response/right_finished"
        found.setdefault(name, []).append(float(scores.total >= correct_score))
    return found


def _explained_variance(batch: TokenBatch) -> float:
    """1 − Var(R − V)/Var(R). Returns that do not vary are explained where R − V does not either."""
    unexplained = float(masked_var(batch["returns"] - batch["values"], batch.mask))
    spread = float(masked_var(batch["returns"], batch.mask))
    if spread > 0:
        return 1 - unexplained / spread
    return 1.0 if unexplained == 0 else 0.0


def _scores_by_group(batch: TokenBatch) -> list[list[float]]:
    """The scores of each prompt's responses; none where the batch does not name its prompts."""
    if "group" not in batch:
        return []
    by_group: dict[int, list[float]] = {}
    for group, scores in zip(batch["group"].tolist(), batch.scores, strict=True):
        by_group.setdefault(group, []).append(scores.total)
    return list(by_group.values())


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
            found |= {f"reward/{name}": value for name, value in row.scores.metrics.items()}
        if row.shaped is not None:
            found["reward/shaped_mean"] = row.shaped.paid
            found["reward/norm_mean"] = row.shaped.norm_mean
            found["reward/norm_std"] = row.shaped.norm_std
            found["reward/clipped"] = row.shaped.clipped
        for name, value in found.items():
            if value is not None:
                columns.setdefault(name, []).append(value)
    return columns
