"""The mathematics of PPO.

`definitions` says what every estimator and loss is, without torch. The other modules hold the
tensor functions: tensors in, tensors out. They import torch and nothing else of Telescope, and are
imported on first use, so that the definitions can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from telescope.algorithms.advantages import *  # noqa: F403
    from telescope.algorithms.definitions import *  # noqa: F403
    from telescope.algorithms.definitions.base import *  # noqa: F403
    from telescope.algorithms.definitions.kl import *  # noqa: F403
    from telescope.algorithms.groups import *  # noqa: F403
    from telescope.algorithms.kl import *  # noqa: F403
    from telescope.algorithms.losses import *  # noqa: F403
    from telescope.algorithms.masked import *  # noqa: F403
    from telescope.algorithms.mismatch import *  # noqa: F403
    from telescope.algorithms.scores import *  # noqa: F403
    from telescope.algorithms.surrogates import *  # noqa: F403

_MODULES = {
    "definitions": "ESTIMATORS POLICY_LOSSES VALUE_LOSSES estimator policy_loss",
    "definitions.base": (
        "Actions Comparison Estimator Needs Objective PolicyLoss Rule Settings Term UpdatedToken "
        "ValueLoss Words"
    ),
    "definitions.kl": "KL_ESTIMATES",
    "advantages": "gae length_adaptive_lam monte_carlo_returns n_step_advantages td_errors",
    "groups": (
        "Credit dr_grpo gdpo grpo grpo_passk last_actions maxrl opo optimal_token_baseline remax "
        "rloo spread"
    ),
    "kl": "adapt_kl_coef kl_penalty",
    "losses": (
        "PolicyTerms ValueTerms aggregate clipped_policy_loss clipped_value_loss "
        "entropy_from_logits entropy_weight hl_gauss_loss hl_gauss_targets hl_gauss_values "
        "huber_value_loss log_probs_from_logits prompt_shares surrogate_loss"
    ),
    "masked": "masked_mean masked_sum masked_var masked_whiten whitening",
    "mismatch": "importance_weights kept_by_ratio off_policy_mask top_entropy without_outliers",
    "scores": "Moments majority overlong_penalty pass_at_k",
    "surrogates": (
        "adapt_penalty cispo_loss clip_cov_loss covariance dppo_loss dro_loss geo_mean_loss "
        "gspo_loss kl_cov_loss kl_penalty_loss sapo_loss select_clip_cov select_kl_cov"
    ),
}
"""Module -> what it has for this namespace."""
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [*_HOME]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"telescope.algorithms.{_HOME[name]}"), name)
