"""Several processes as one: each holds a slice of every weight (FSDP2) and works on its share of the rows.

Every process runs the same calls in the same order, because gathering weights and summing gradients are meetings of all.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from telescope.errors import TelescopeError
from telescope.models.lora import adapted

T = TypeVar("T")


class Ranks:
    """The processes that share a role's work. This one is for a role that is alone."""

    rank, size = 0, 1

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        return numbers

    def most(self, number: int) -> int:
        """The largest over all processes."""
        return number


class ProcessGroup(Ranks):
    """The processes of torch.distributed's default group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank, self.size, self._dist = dist.get_rank(), dist.get_world_size(), dist

    def sum(self, numbers: Tensor) -> Tensor:
        self._dist.all_reduce(numbers)
        return numbers

    def most(self, number: int) -> int:
        found = torch.tensor([number])
        self._dist.all_reduce(found, self._dist.ReduceOp.MAX)
        return int(found)


def shard(model: Any, dtype: torch.dtype) -> None:
    """Slices the model over all processes. Slices that are trained are float32; what is computed with them is `dtype`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (ProcessGroup().size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if dtype is not torch.float32 else MixedPrecisionPolicy()
    backbone = getattr(model, "backbone", model).base_model
    if not hasattr(backbone, "layers"):
        raise TelescopeError(f"{type(backbone).__name__} cannot be sliced: it has no `layers`; use backend = 'local'")
    for module in model.modules():
        module.__dict__.pop("joined", None)  # would keep the whole matrices alive
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for layer in backbone.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if hasattr(model, "head"):
        fully_shard(model.head, mesh=mesh)  # the value head stays float32
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.within = types.MethodType(lambda self, function: function(), model)
    register_fsdp_forward_method(model, "within")
    for module in model.modules():
        if isinstance(module, FSDPModule):  # gradients are sums over all rows, each divided by the global count already
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def within(model: Any, function: Callable[[], T]) -> T:
    """Runs `function`, which uses the model's parts, as a forward of the whole: sharded weights are there meanwhile."""
    return model.within(function) if hasattr(model, "within") else function()


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Within it every process holds all of the model's weights, and forward passes need no meeting."""
    parts: list[Any] = [module for module in model.modules() if hasattr(module, "unshard")]
    for part in parts:
        part.set_reshard_after_forward(False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True)


def full(value: Any) -> Any:
    """A sliced tensor put together, in the first process's memory beside the GPU (a meeting of all); anything else as it is."""
    if not hasattr(value, "full_tensor"):
        return value
    whole = value.full_tensor()
    return whole.cpu() if ProcessGroup().rank == 0 else whole.new_empty(0)


def like(value: Tensor, sliced: Any) -> Tensor:
    """This process's slice of `value`, cut as `sliced` is."""
    if not hasattr(sliced, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(sliced.device), sliced.device_mesh, sliced.placements)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Weights by name, sliced or not: all, or beside frozen ones those that are trained; the frozen ones are where they came from."""
    trained = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    return trained if adapted(model) else model.state_dict()


def full_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: full(value) for name, value in state_of(model).items()}


@torch.no_grad()
def load_full_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    own = state_of(model)
    if own.keys() != state.keys():
        raise RuntimeError(f"weights do not fit: {sorted(own.keys() ^ state.keys())[0]}")
    for name, value in own.items():
        value.copy_(like(state[name], value))
