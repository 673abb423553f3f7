"""One model in several processes: each holds a shard of every weight (FSDP2) and some rows.

With sequence parallelism, groups of ranks share the tokens of the same rows. Gathering weights,
summing gradients and exchanging tokens are collectives. So every rank must make the same calls in
the same order.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from telescope.errors import TelescopeError
from telescope.models.sequence import SequenceGroup

if TYPE_CHECKING:
    from telescope.models.weight_files import WeightFiles

T = TypeVar("T")


class Ranks:
    """The processes that share a role's work. This class is for a role in a single process."""

    rank = 0
    size = 1
    sequence: SequenceGroup | None = None
    """The ranks with the same rows as this one; None if no other rank has them."""

    @property
    def row_groups(self) -> int:
        """Into how many shares rows are split."""
        return self.size // (self.sequence.size if self.sequence else 1)

    @property
    def row_group(self) -> int:
        """Which share of the rows this rank has."""
        return self.rank // (self.sequence.size if self.sequence else 1)

    @property
    def counts(self) -> bool:
        """Whether this rank counts its rows: of ranks with the same rows, only the first does."""
        return self.sequence is None or self.sequence.rank == 0

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over all ranks."""
        return numbers

    def max(self, number: int) -> int:
        """The largest over all ranks."""
        return number


class ProcessGroup(Ranks):
    """The ranks of torch.distributed's default group, and the mesh that models are sharded over.

    Each `shards` ranks in a row hold one copy of a model; the default is one copy over all ranks.
    Each `sequence_size` ranks in a row share the tokens of the same rows.
    """

    def __init__(
        self, device: torch.device, shards: int | None = None, sequence_size: int = 1
    ) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        self._dist = dist
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = device
        shape: tuple[int, ...] = (self.size,)
        names: tuple[str, ...] = ("shard",)
        copies = self.size // (shards or self.size)
        if copies > 1:
            shape = (copies, self.size // copies)
            names = ("replicate", "shard")
        self.mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        if sequence_size > 1:
            groups = init_device_mesh(
                device.type,
                (self.size // sequence_size, sequence_size),
                mesh_dim_names=("rows", "sequence"),
            )
            self.sequence = SequenceGroup(groups.get_group("sequence"))

    def sum(self, numbers: Tensor) -> Tensor:
        self._dist.all_reduce(numbers)
        return numbers

    def max(self, number: int) -> int:
        found = torch.tensor([number])
        self._dist.all_reduce(found, self._dist.ReduceOp.MAX)
        return int(found)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        values = [value]
        self._dist.broadcast_object_list(values)
        return values[0]

    def broadcast_into(self, tensor: Tensor, value: Tensor | None) -> None:
        """Gives `tensor`, which may be sharded, the `value` of rank 0."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if value is None:
            given = torch.empty(tensor.shape, device=self.device, dtype=tensor.dtype)
        else:
            given = value.detach().to(device=self.device, dtype=tensor.dtype)
        if isinstance(tensor, DTensor):
            tensor.copy_(distribute_tensor(given, tensor.device_mesh, tensor.placements))
        else:
            self._dist.broadcast(given, 0)
            tensor.copy_(given)


# ---- making a sharded model


def shard(model: Any, dtype: torch.dtype, ranks: ProcessGroup) -> None:
    """Shards a model on the meta device over the ranks.

    Afterwards its shards are float32 and uninitialised; what is computed with them is `dtype`.
    """
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    policy = MixedPrecisionPolicy()
    if dtype is not torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    backbone = getattr(model, "backbone", model).base_model
    if not hasattr(backbone, "layers"):
        raise TelescopeError(
            f"{type(backbone).__name__} cannot be sharded: it has no `layers`; "
            "use backend = 'local'"
        )
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for layer in backbone.layers:
        fully_shard(layer, mesh=ranks.mesh, mp_policy=policy)
    if hasattr(model, "head"):
        fully_shard(model.head, mesh=ranks.mesh)  # the value head stays float32
    fully_shard(model, mesh=ranks.mesh, mp_policy=policy)
    model.run_in_forward = types.MethodType(lambda self, function: function(), model)
    register_fsdp_forward_method(model, "run_in_forward")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Each loss is divided by the global count already, so gradients are sums over all rows.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device=ranks.device)
    for module in model.modules():
        # `to_empty` leaves out tensors that are neither parameters nor buffers.
        for name, value in _plain_tensors(module):
            vars(module)[name] = torch.empty_like(value, device=ranks.device)


@torch.no_grad()
def fill_shards(
    models: Sequence[nn.Module],
    full: nn.Module | None,
    ranks: ProcessGroup,
    files: WeightFiles | None,
) -> None:
    """Gives sharded models their weights, one tensor at a time.

    Each rank reads its rows of those in `files`. The others are sent by rank 0, which has `full`.
    """
    given = dict(_tensors(full)) if full is not None else {}
    sharded = [dict(_tensors(model)) for model in models]
    names = ranks.broadcast(list(given))
    different = sorted(set(names) ^ sharded[0].keys())
    if different:
        raise TelescopeError(
            f"the model has other weights than its config.json says ({different[0]}), "
            "so it cannot be sharded; use backend = 'local'"
        )
    for name in names:
        if files is not None and name in files:
            files.fill([tensors[name] for tensors in sharded], name)
            continue
        for tensors in sharded:
            ranks.broadcast_into(tensors[name], given.get(name))


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers, and tensors that a module holds as neither."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for place, module in model.named_modules():
        for name, value in _plain_tensors(module):
            yield f"{place}.{name}", value


def _plain_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in vars(module).items() if isinstance(value, Tensor)]


def own_rows(tensor: Any) -> slice:
    """The rows of a tensor that this rank holds: a shard's, or all."""
    rows = tensor.shape[0]
    if not hasattr(tensor, "placements"):
        return slice(0, rows)
    mesh = tensor.device_mesh
    each = -(-rows // mesh.size(-1))  # rounded up: the last ranks may have fewer, or none
    start = min(each * mesh.get_local_rank(mesh.ndim - 1), rows)
    return slice(start, min(start + each, rows))


def local_part(tensor: Any) -> Tensor:
    """What this rank holds of a tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


# ---- using a sharded model


def run_in_forward(model: Any, function: Callable[[], T]) -> T:
    """Runs `function`, which uses parts of the model, as a forward of the model.

    FSDP gathers a sharded model's weights meanwhile.
    """
    if not hasattr(model, "run_in_forward"):
        return function()
    result: T = model.run_in_forward(function)
    return result


def reshard(model: nn.Module) -> None:
    """Frees gathered weights.

    Embeddings and output layer stay gathered after a forward without a gradient; until they are
    resharded, the module does not hold its parameters.
    """
    for part in _fsdp_modules(model):
        part.reshard()


def _fsdp_modules(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "unshard")]


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Within it every rank holds all of the model's weights: forwards need no collective."""
    parts = _fsdp_modules(model)
    for part in parts:
        part.set_reshard_after_forward(False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True)


def full_tensor(value: Any) -> Tensor:
    """A sharded tensor, gathered on every rank (a collective); any other tensor as it is."""
    full: Tensor = value
    if _crashes_gloo(value):
        full = value.cpu().full_tensor().to(value.device)
    elif hasattr(value, "full_tensor"):
        full = value.full_tensor()
    return full


def _crashes_gloo(value: Any) -> bool:
    """Over gloo, gathering the shards of a GPU is a segmentation fault (torch 2.11)."""
    if value.device.type != "cuda" or not hasattr(value, "placements"):
        return False
    if not any(placement.is_shard() for placement in value.placements):
        return False
    backend: str = torch.distributed.get_backend(value.device_mesh.get_group(0))
    return backend == "gloo"
