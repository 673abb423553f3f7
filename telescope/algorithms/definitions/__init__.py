"""One definition per estimator and loss. Imports no torch, and nothing else of Telescope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from telescope.algorithms.definitions import critic, outcome, policy, value
from telescope.algorithms.definitions.base import Estimator, PolicyLoss, ValueLoss
from telescope.algorithms.definitions.registry import Registry

ESTIMATORS = Registry(
    Estimator, "estimator", "telescope.estimators", critic.ESTIMATORS + outcome.ESTIMATORS
)
POLICY_LOSSES = Registry(PolicyLoss, "policy loss", "telescope.losses", policy.POLICY_LOSSES)
VALUE_LOSSES = Registry(ValueLoss, "value loss", "telescope.value_losses", value.VALUE_LOSSES)

DEFAULT_ESTIMATOR = "gae"
DEFAULT_POLICY_LOSS = "clip"
DEFAULT_VALUE_LOSS = "mse"


def estimator(**fields: Any) -> Callable[[Callable[..., Any]], Estimator]:
    """Makes an `Estimator` of a tensor function: `@estimator(formula=…, rules=…, words=…)`.

    The function's name is the estimator's. It takes the batch and its settings and returns a
    `telescope.algorithms.Credit`.
    """

    def define(function: Callable[..., Any]) -> Estimator:
        return Estimator(**{"name": function.__name__, "tensor": function, **fields})

    return define


def policy_loss(**fields: Any) -> Callable[[Callable[..., Any]], PolicyLoss]:
    """Makes a `PolicyLoss` of a tensor function: `@policy_loss(formula=…, objective=…, words=…)`.

    The function takes log_probs, old_log_probs, advantages and mask, all [B, T], and its settings
    as keyword arguments. It returns `telescope.algorithms.PolicyTerms`.
    """

    def define(function: Callable[..., Any]) -> PolicyLoss:
        return PolicyLoss(**{"name": function.__name__, "tensor": function, **fields})

    return define
