"""Which tokens take part in the actor's update, and with what weight.

Sampler and trainer may give the same token different probabilities. Tokens on which they disagree
are left out of the minibatch, or weighed. Other masks set a token's weight to 0.
"""

from __future__ import annotations

from torch import Tensor

from telescope.algorithms import (
    importance_weights,
    kept_by_ratio,
    off_policy_mask,
    without_outliers,
)
from telescope.algorithms.definitions.mismatch import LOG_LIMIT
from telescope.algorithms.masked import keep
from telescope.batch import TokenBatch
from telescope.config import ActorConfig
from telescope.roles.meter import Meter


def kept_tokens(minibatch: TokenBatch, config: ActorConfig) -> Tensor:
    """The tokens on which sampler and trainer agree well enough, bool [B, T]."""
    old = minibatch["old_log_probs"]
    sampled = minibatch["rollout_log_probs"]
    kept = minibatch.mask.bool()
    if config.reject != "off":
        kept = kept_by_ratio(
            old,
            sampled,
            minibatch.mask,
            level=config.reject,
            low=None if config.rejects_by_divergence else config.reject_low,
            high=config.reject_high,
        )
    if config.reject_outlier is not None:
        kept &= without_outliers(old, sampled, minibatch.mask, limit=config.reject_outlier)
    return kept


def loss_weights(
    rows: TokenBatch, log_probs: Tensor, old_log_probs: Tensor, config: ActorConfig, meter: Meter
) -> Tensor:
    """What each token's loss is multiplied by, [B, T]."""
    mask = rows.mask
    weight = mask.to(old_log_probs.dtype)
    if config.importance != "off":
        weight = importance_weights(
            old_log_probs,
            rows["rollout_log_probs"],
            mask,
            level=config.importance,
            cap=config.importance_cap,
            low=config.importance_low,
            mode=config.importance_mode,
        )
        meter.tokens("actor/importance", weight, mask)
    if config.off_policy_mask is not None:
        masked = off_policy_mask(
            log_probs,
            rows["rollout_log_probs"],
            rows["whitened"],
            mask,
            threshold=config.off_policy_mask,
        )
        meter.tokens("actor/off_policy_masked", masked, mask)
        weight = keep(weight, ~masked)
    if "top_entropy" in rows:
        weight = keep(weight, rows["top_entropy"])
    return weight


def measure_mismatch(old_log_probs: Tensor, rows: TokenBatch, meter: Meter) -> None:
    """Adds how far the sampler is from the trainer, ratio = π_old/π_sampler.

    `finish_mismatch` makes effective sample size and χ² of these means.
    """
    mask = rows.mask
    gap = keep(old_log_probs, mask).detach() - keep(rows["rollout_log_probs"], mask)
    ratio = gap.double().clamp(-LOG_LIMIT, LOG_LIMIT).exp()
    of_row = gap.double().sum(1).clamp(-LOG_LIMIT, LOG_LIMIT).exp()
    has_tokens = mask.any(1)
    meter.tokens("rollout/logprob_diff", gap.abs(), mask)
    meter.tokens("rollout/ess", ratio, mask)
    meter.tokens("rollout/chi2_token", ratio**2, mask)
    meter.add("rollout/chi2_seq", keep(of_row**2, has_tokens).sum(), has_tokens.sum())


def finish_mismatch(metrics: dict[str, float]) -> None:
    """Turns the means of the ratio and of its square into what is logged.

    ess = mean(ratio)² / mean(ratio²)      χ² = mean(ratio²) − 1
    """
    square = metrics["rollout/chi2_token"]
    metrics["rollout/ess"] = metrics["rollout/ess"] ** 2 / square if square else 0.0
    metrics["rollout/chi2_token"] = square - 1
    metrics["rollout/chi2_seq"] -= 1
