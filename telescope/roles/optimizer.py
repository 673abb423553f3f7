"""The optimizers that `actor.optimizer` and `critic.optimizer` choose from, and their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from telescope.config import OptimizerConfig
from telescope.errors import TelescopeError, pip_install


def make_optimizer(masters: Sequence[Tensor], config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW of these weights, with moments of 32 or 8 bits."""
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "adamw":
        return torch.optim.AdamW(list(masters), **settings, fused=True)
    try:
        import bitsandbytes
    except ImportError:
        raise TelescopeError(
            f"optimizer = {config.optimizer!r} needs bitsandbytes: {pip_install('bitsandbytes')}"
        ) from None
    optim: Any = bitsandbytes.optim  # typed only in part
    makers = {"adamw8bit": optim.AdamW8bit, "paged_adamw8bit": optim.PagedAdamW8bit}
    made: torch.optim.Optimizer = makers[config.optimizer](list(masters), **settings)
    return made


def state_of(optimizer: Any, number: int) -> dict[str, Tensor]:
    """Moments and step of one weight, by name; before the first step, those it starts from."""
    (group,) = optimizer.param_groups
    master = group["params"][number]
    state = optimizer.state[master]
    if not state and isinstance(optimizer, torch.optim.AdamW):
        state["step"] = torch.zeros((), device=master.device)
        state["exp_avg"] = torch.zeros_like(master, requires_grad=False)
        state["exp_avg_sq"] = torch.zeros_like(master, requires_grad=False)
    elif not state:
        optimizer.init_state(group, master, 0, number)
    # All weights share bitsandbytes' tables of levels, which never change.
    named = {name: value for name, value in state.items() if not name.startswith("qmap")}
    return {name: torch.as_tensor(value) for name, value in named.items()}


def set_step(optimizer: Any, number: int, step: Tensor) -> None:
    """Sets the step of one weight, which bitsandbytes keeps as a number. Tensors are set in place.

    `step` is that of `state_of`, after a checkpoint filled it.
    """
    (group,) = optimizer.param_groups
    state = optimizer.state[group["params"][number]]
    if not isinstance(state["step"], Tensor):
        state["step"] = int(step)
