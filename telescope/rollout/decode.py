"""The memory that decode steps work in: the KV cache, and where each running row is.

CUDA graphs read and write fixed addresses. So this memory stays where it is between rollouts; only
the cache is freed, and graphs find the next one through a table of addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from telescope.models.fast.decode_kernels import attend_cache, write_cache
from telescope.models.fast.packed import PackedRows
from telescope.rollout.sampler import Rollout, cache_shape

MAX_STOPS = 8
"""Stop tokens that a decode step can compare with."""


class Cache:
    """Keys and values of `slots` responses, up to `length` tokens each.

    Writes its sizes and addresses into `table`, where kernels look them up.
    """

    def __init__(self, model: Any, slots: int, length: int, table: Tensor) -> None:
        (heads, size), layers = cache_shape(model.config)
        shape = (2, slots, heads, length, size)
        self.tensors = [
            torch.empty(shape, dtype=model.dtype, device=model.device) for _ in range(layers)
        ]
        addresses = [half.data_ptr() for tensor in self.tensors for half in tensor]
        table.copy_(torch.tensor([length, slots, *addresses]))


class Prefill(PackedRows):
    """Packed prompts; their keys and values are also written to the cache."""

    def __init__(self, lengths: list[int], slots: Tensor, table: Tensor) -> None:
        super().__init__(lengths, slots.device)
        counts = torch.tensor(lengths, device=slots.device)
        self.slots = slots.repeat_interleave(counts, output_size=self.total)  # one per token
        self.table = table

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attention within each prompt, after writing the cache."""
        write_cache(k, v, self.table, layer, self.slots, self.positions)
        return super().attend(layer, q, k, v, scale, window)


class DecodeState:
    """Static buffers that the CUDA graphs read and write.

    They hold the prompt, cache slot, last token and position of each running row.
    Row i answers prompt `request[i]` of this call, which is row `number[i]` of the training step.
    """

    def __init__(self, rows: int, prompts: int, limit: int, table: Tensor) -> None:
        device = table.device

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.table = table
        # of each running row
        self.number = zeros(rows)
        self.request = zeros(rows)
        self.slot = zeros(rows)
        self.token = zeros(rows)
        self.position = zeros(rows)
        self.step = zeros(rows)
        self.alive = zeros(rows, dtype=torch.int32)
        # of each prompt
        self.responses = zeros(prompts, limit)
        self.log_probs = zeros(prompts, limit, dtype=torch.float32)
        self.ended = zeros(prompts, dtype=torch.int32)
        # of the call
        self.stop = torch.full((MAX_STOPS,), -1, dtype=torch.long, device=device)
        self.seed = zeros(1)
        self.noise = torch.ones(1, dtype=torch.float32, device=device)

    def begin(self, stop: Tensor, seed: int, greedy: bool, limits: Sequence[int]) -> None:
        """Clears what a former call has left."""
        self.limits = torch.tensor(limits, device=self.table.device)
        # A graph has one length limit. A row with a smaller limit starts at a later index.
        self.first = self.responses.shape[1] - self.limits
        self.stop.fill_(-1)[: len(stop)] = stop
        self.seed.fill_(seed)
        self.noise.fill_(0.0 if greedy else 1.0)
        self.responses.zero_()
        self.log_probs.zero_()
        self.ended.zero_()

    def admit(self, rows: slice, requests: list[int], slots: list[int], lengths: list[int]) -> None:
        """Gives rows to prompts of these lengths. Their last token is in the prompt."""
        device = self.table.device
        self.request[rows] = torch.tensor(requests, device=device)
        self.slot[rows] = torch.tensor(slots, device=device)
        self.position[rows] = torch.tensor(lengths, device=device) - 1
        self.step[rows] = self.first[self.request[rows]]
        self.alive[rows] = 1

    def fill_up(self, count: int, size: int, spare_slot: int) -> None:
        """Makes rows from `count` to `size` padding, which writes into a spare slot."""
        self.alive[count:size] = 0
        self.slot[count:size] = spare_slot
        self.position[count:size] = 0

    def remove_finished(self, count: int) -> list[int]:
        """Closes the gaps of rows that have ended; returns their slots."""
        alive = self.alive[:count].bool().cpu()
        if bool(alive.all()):
            return []
        freed: list[int] = self.slot[:count].cpu()[~alive].tolist()
        kept = alive.nonzero().squeeze(1).to(self.table.device)
        for part in (
            self.number,
            self.request,
            self.slot,
            self.token,
            self.position,
            self.step,
            self.alive,
        ):
            part[: len(kept)] = part[kept]
        return freed

    def rollout(self, prompts: int, pad: int) -> Rollout:
        """The responses to the first `prompts` requests."""
        t = torch.arange(int(self.limits.max()), device=self.limits.device)
        places = (self.first[:, None] + t).clamp(max=self.responses.shape[1] - 1)
        responses = self.responses[:prompts].gather(1, places)
        log_probs = self.log_probs[:prompts].gather(1, places)
        ended = self.ended[:prompts].bool()
        first_stop = torch.isin(responses, self.stop).int().argmax(1)
        lengths = torch.where(ended, first_stop + 1, self.limits)
        longest = int(lengths.max())
        past_end = t[:longest] >= lengths[:, None]
        return Rollout(
            responses[:, :longest].masked_fill(past_end, pad),
            lengths,
            log_probs[:, :longest].masked_fill(past_end, 0.0),
            ~ended,
        )


class Decode:
    """One token of each of the first `count` rows, attending to the row's slot of the cache."""

    rounds_once = True

    def __init__(self, state: DecodeState, count: int) -> None:
        self.table = state.table
        self.slots = state.slot[:count]
        self.positions = state.position[:count]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attention of the new token to everything before it."""
        return attend_cache(q, k, v, self.table, layer, self.slots, self.positions, scale, window)
