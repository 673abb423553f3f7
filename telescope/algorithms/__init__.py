"""The mathematics of PPO as pure functions: tensors in, tensors out. Imports torch and nothing of ours."""

from telescope.algorithms.advantages import gae, monte_carlo_returns, n_step_advantages, td_errors
from telescope.algorithms.kl import adapt_kl_coef, kl_penalty
from telescope.algorithms.losses import (
    PolicyTerms,
    ValueTerms,
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    entropy_from_logits,
    importance_weights,
    log_probs_from_logits,
    surrogate_loss,
)
from telescope.algorithms.masked import masked_mean, masked_sum, masked_var, masked_whiten, whitening

__all__ = [
    "PolicyTerms",
    "ValueTerms",
    "adapt_kl_coef",
    "aggregate",
    "clipped_policy_loss",
    "clipped_value_loss",
    "entropy_from_logits",
    "gae",
    "importance_weights",
    "kl_penalty",
    "log_probs_from_logits",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "monte_carlo_returns",
    "n_step_advantages",
    "surrogate_loss",
    "td_errors",
    "whitening",
]
