"""Sequence parallelism's collectives; models/fast/token_shard.py says what they are for."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class SequenceGroup:
    """Ranks that share the tokens of the same rows."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def exchange(self, parts: Tensor) -> Tensor:
        """All-to-all: sends part s of [S, ...] to rank s; part s of the result came from rank s."""
        apply: Any = _Exchange.apply  # torch declares no types for it
        received: Tensor = apply(parts, self.group)
        return received

    def complete(self, values: Tensor, places: Tensor, count: int) -> Tensor:
        """[count, ...] on every rank, of the values [m, ...] that each rank has at its `places`.

        Every rank must then compute the same loss of it. A rank passes on the gradient of its own
        values only, so gradients summed over the ranks are those of one loss.
        """
        apply: Any = _Complete.apply
        full: Tensor = apply(values, places, count, self.group)
        return full


class _Exchange(torch.autograd.Function):
    """All-to-all; its gradient takes the way back, which is another all-to-all."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _all_to_all(parts, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _all_to_all(grads[0], ctx.group), None


def _all_to_all(parts: Tensor, group: Any) -> Tensor:
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received


class _Complete(torch.autograd.Function):
    """See `SequenceGroup.complete`. Other ranks add zeros, so no value is rounded."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, count: int, group: Any) -> Tensor:
        ctx.save_for_backward(places)
        full = values.new_zeros(count, *values.shape[1:])
        full[places] = values
        dist.all_reduce(full, group=group)
        return full

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grads[0][places], None, None, None
