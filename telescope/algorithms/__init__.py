"""The mathematics of PPO.

`definitions` says what every estimator and loss is, without torch. The other modules hold the
tensor functions: tensors in, tensors out. They import torch and nothing else of Telescope, and are
imported on first use, so that the definitions can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from telescope.algorithms.definitions import (
    ESTIMATORS,
    POLICY_LOSSES,
    VALUE_LOSSES,
    estimator,
    policy_loss,
)
from telescope.algorithms.definitions.base import (
    Actions,
    Comparison,
    Estimator,
    Needs,
    Objective,
    PolicyLoss,
    Rule,
    Settings,
    Term,
    UpdatedToken,
    ValueLoss,
    Words,
)
from telescope.algorithms.definitions.kl import KL_ESTIMATES

if TYPE_CHECKING:
    from telescope.algorithms.advantages import gae as gae
    from telescope.algorithms.advantages import length_adaptive_lam as length_adaptive_lam
    from telescope.algorithms.advantages import monte_carlo_returns as monte_carlo_returns
    from telescope.algorithms.advantages import n_step_advantages as n_step_advantages
    from telescope.algorithms.advantages import td_errors as td_errors
    from telescope.algorithms.groups import Credit as Credit
    from telescope.algorithms.groups import dr_grpo as dr_grpo
    from telescope.algorithms.groups import gdpo as gdpo
    from telescope.algorithms.groups import grpo as grpo
    from telescope.algorithms.groups import grpo_passk as grpo_passk
    from telescope.algorithms.groups import last_actions as last_actions
    from telescope.algorithms.groups import maxrl as maxrl
    from telescope.algorithms.groups import opo as opo
    from telescope.algorithms.groups import optimal_token_baseline as optimal_token_baseline
    from telescope.algorithms.groups import remax as remax
    from telescope.algorithms.groups import rloo as rloo
    from telescope.algorithms.groups import spread as spread
    from telescope.algorithms.kl import adapt_kl_coef as adapt_kl_coef
    from telescope.algorithms.kl import kl_penalty as kl_penalty
    from telescope.algorithms.losses import PolicyTerms as PolicyTerms
    from telescope.algorithms.losses import ValueTerms as ValueTerms
    from telescope.algorithms.losses import aggregate as aggregate
    from telescope.algorithms.losses import clipped_policy_loss as clipped_policy_loss
    from telescope.algorithms.losses import clipped_value_loss as clipped_value_loss
    from telescope.algorithms.losses import entropy_from_logits as entropy_from_logits
    from telescope.algorithms.losses import entropy_weight as entropy_weight
    from telescope.algorithms.losses import hl_gauss_loss as hl_gauss_loss
    from telescope.algorithms.losses import hl_gauss_targets as hl_gauss_targets
    from telescope.algorithms.losses import hl_gauss_values as hl_gauss_values
    from telescope.algorithms.losses import huber_value_loss as huber_value_loss
    from telescope.algorithms.losses import log_probs_from_logits as log_probs_from_logits
    from telescope.algorithms.losses import prompt_shares as prompt_shares
    from telescope.algorithms.losses import surrogate_loss as surrogate_loss
    from telescope.algorithms.masked import masked_mean as masked_mean
    from telescope.algorithms.masked import masked_sum as masked_sum
    from telescope.algorithms.masked import masked_var as masked_var
    from telescope.algorithms.masked import masked_whiten as masked_whiten
    from telescope.algorithms.masked import whitening as whitening
    from telescope.algorithms.mismatch import importance_weights as importance_weights
    from telescope.algorithms.mismatch import kept_by_ratio as kept_by_ratio
    from telescope.algorithms.mismatch import off_policy_mask as off_policy_mask
    from telescope.algorithms.mismatch import top_entropy as top_entropy
    from telescope.algorithms.mismatch import without_outliers as without_outliers
    from telescope.algorithms.scores import Moments as Moments
    from telescope.algorithms.scores import majority as majority
    from telescope.algorithms.scores import overlong_penalty as overlong_penalty
    from telescope.algorithms.scores import pass_at_k as pass_at_k
    from telescope.algorithms.surrogates import adapt_penalty as adapt_penalty
    from telescope.algorithms.surrogates import cispo_loss as cispo_loss
    from telescope.algorithms.surrogates import clip_cov_loss as clip_cov_loss
    from telescope.algorithms.surrogates import covariance as covariance
    from telescope.algorithms.surrogates import dppo_loss as dppo_loss
    from telescope.algorithms.surrogates import dro_loss as dro_loss
    from telescope.algorithms.surrogates import geo_mean_loss as geo_mean_loss
    from telescope.algorithms.surrogates import gspo_loss as gspo_loss
    from telescope.algorithms.surrogates import kl_cov_loss as kl_cov_loss
    from telescope.algorithms.surrogates import kl_penalty_loss as kl_penalty_loss
    from telescope.algorithms.surrogates import sapo_loss as sapo_loss
    from telescope.algorithms.surrogates import select_clip_cov as select_clip_cov
    from telescope.algorithms.surrogates import select_kl_cov as select_kl_cov

_MODULES = {
    "advantages": (
        "gae",
        "length_adaptive_lam",
        "monte_carlo_returns",
        "n_step_advantages",
        "td_errors",
    ),
    "groups": (
        "Credit",
        "dr_grpo",
        "gdpo",
        "grpo",
        "grpo_passk",
        "last_actions",
        "maxrl",
        "opo",
        "optimal_token_baseline",
        "remax",
        "rloo",
        "spread",
    ),
    "kl": (
        "adapt_kl_coef",
        "kl_penalty",
    ),
    "losses": (
        "PolicyTerms",
        "ValueTerms",
        "aggregate",
        "clipped_policy_loss",
        "clipped_value_loss",
        "entropy_from_logits",
        "entropy_weight",
        "hl_gauss_loss",
        "hl_gauss_targets",
        "hl_gauss_values",
        "huber_value_loss",
        "log_probs_from_logits",
        "prompt_shares",
        "surrogate_loss",
    ),
    "masked": (
        "masked_mean",
        "masked_sum",
        "masked_var",
        "masked_whiten",
        "whitening",
    ),
    "mismatch": (
        "importance_weights",
        "kept_by_ratio",
        "off_policy_mask",
        "top_entropy",
        "without_outliers",
    ),
    "scores": (
        "Moments",
        "majority",
        "overlong_penalty",
        "pass_at_k",
    ),
    "surrogates": (
        "adapt_penalty",
        "cispo_loss",
        "clip_cov_loss",
        "covariance",
        "dppo_loss",
        "dro_loss",
        "geo_mean_loss",
        "gspo_loss",
        "kl_cov_loss",
        "kl_penalty_loss",
        "sapo_loss",
        "select_clip_cov",
        "select_kl_cov",
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ESTIMATORS",
    "KL_ESTIMATES",
    "POLICY_LOSSES",
    "VALUE_LOSSES",
    "Actions",
    "Comparison",
    "Estimator",
    "Needs",
    "Objective",
    "PolicyLoss",
    "Rule",
    "Settings",
    "Term",
    "UpdatedToken",
    "ValueLoss",
    "Words",
    "estimator",
    "policy_loss",
    *_HOME,
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"telescope.algorithms.{_HOME[name]}"), name)
