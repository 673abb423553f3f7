"""Several processes as one: each holds a slice of every weight (FSDP2) and works on its share of the rows.

Every process runs the same calls in the same order, because gathering weights and summing gradients are meetings of all.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from telescope.errors import TelescopeError

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
    """The processes of torch.distributed's default group, and how models are sliced over them: over `shards` that follow one another,
    with a copy of all slices on every such set; default: over all."""

    def __init__(self, device: torch.device, shards: int | None = None) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        self.rank, self.size, self.device, self._dist = (
            dist.get_rank(),
            dist.get_world_size(),
            device,
            dist,
        )
        copies = self.size // (shards or self.size)
        shape, names = (
            ((copies, self.size // copies), ("copy", "shard"))
            if copies > 1
            else ((self.size,), ("shard",))
        )
        self.mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)

    def sum(self, numbers: Tensor) -> Tensor:
        self._dist.all_reduce(numbers)
        return numbers

    def most(self, number: int) -> int:
        found = torch.tensor([number])
        self._dist.all_reduce(found, self._dist.ReduceOp.MAX)
        return int(found)

    def shared(self, value: Any) -> Any:
        """The first process's value."""
        values = [value]
        self._dist.broadcast_object_list(values)
        return values[0]

    def fill(self, tensor: Tensor, value: Tensor | None) -> None:
        """Gives `tensor`, which may be sliced, the `value` that the first process has."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        kind: Any = {"device": self.device, "dtype": tensor.dtype}
        given = torch.empty(tensor.shape, **kind) if value is None else value.detach().to(**kind)
        if isinstance(tensor, DTensor):
            tensor.copy_(distribute_tensor(given, tensor.device_mesh, tensor.placements))
        else:
            self._dist.broadcast(given, 0)
            tensor.copy_(given)


def shard(model: Any, dtype: torch.dtype, ranks: ProcessGroup) -> None:
    """Slices a model without weights over the processes. The slices are float32, and empty; what is computed with them is `dtype`."""
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    policy = (
        MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        if dtype is not torch.float32
        else MixedPrecisionPolicy()
    )
    backbone = getattr(model, "backbone", model).base_model
    if not hasattr(backbone, "layers"):
        raise TelescopeError(
            f"{type(backbone).__name__} cannot be sliced: it has no `layers`; use backend = 'local'"
        )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for layer in backbone.layers:
        fully_shard(layer, mesh=ranks.mesh, mp_policy=policy)
    if hasattr(model, "head"):
        fully_shard(model.head, mesh=ranks.mesh)  # the value head stays float32
    fully_shard(model, mesh=ranks.mesh, mp_policy=policy)
    model.within = types.MethodType(lambda self, function: function(), model)
    register_fsdp_forward_method(model, "within")
    for module in model.modules():
        if isinstance(
            module, FSDPModule
        ):  # gradients are sums over all rows, each divided by the global count already
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device=ranks.device)
    for (
        module
    ) in model.modules():  # tensors that are neither parameters nor buffers, and so were left out
        vars(module).update(
            {name: torch.empty_like(value, device=ranks.device) for name, value in _others(module)}
        )


@torch.no_grad()
def fill(models: Sequence[nn.Module], whole: nn.Module | None, ranks: ProcessGroup) -> None:
    """Gives sliced models the weights of `whole`, which the first process alone holds: one by one, to each process its slices."""
    given = dict(_tensors(whole)) if whole is not None else {}
    own = [dict(_tensors(model)) for model in models]
    names = ranks.shared(list(given))
    if strange := sorted(set(names) ^ own[0].keys()):
        raise TelescopeError(
            f"the model has other weights than its config.json says ({strange[0]}): it cannot be sliced"
        )
    for name in names:
        for tensors in own:
            ranks.fill(tensors[name], given.get(name))


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers, and tensors that a model holds as neither."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for place, module in model.named_modules():
        yield from ((f"{place}.{name}", value) for name, value in _others(module))


def _others(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in vars(module).items() if isinstance(value, Tensor)]


def within(model: Any, function: Callable[[], T]) -> T:
    """Runs `function`, which uses the model's parts, as a forward of the whole: sharded weights are there meanwhile."""
    return model.within(function) if hasattr(model, "within") else function()


def reshard(model: nn.Module) -> None:
    """Back to slices: after a forward without a gradient embeddings and output layer stay gathered, and are not the parameters then."""
    for part in _parts(model):
        part.reshard()


def _parts(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "unshard")]


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Within it every process holds all of the model's weights, and forward passes need no meeting."""
    parts = _parts(model)
    for part in parts:
        part.set_reshard_after_forward(False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True)


def whole_tensor(value: Any) -> Tensor:
    """A sliced tensor put together in every process, which is a meeting of all; any other as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
