"""The GPU sampler: the actor's own weights, a KV cache of slots, and one CUDA graph per decode step.

A step feeds every running row its last token and draws the next one, all inside the graph. Every few steps the host looks
which rows have ended: their slots go to prompts that still wait, and a smaller graph takes over when rows grow few.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from telescope.models.fast.capture import capturing
from telescope.models.fast.decode_kernels import attend_cache, sample_tokens, write_cache
from telescope.models.fast.packed import PackedRows, hidden_states, logits_of
from telescope.rollout.sampler import Rollout, TorchSampler, cache_shape, restrict

LOOK_EVERY = 16  # steps between looks at which rows have ended
PREFILL_TOKENS = 32_768  # of prompts that go through the model at once
_BUCKETS = [
    8,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    *range(384, 1025, 128),
    *range(1280, 8193, 256),
]
_STOPS = 8
_log = logging.getLogger("telescope")


class Cache:
    """Keys and values of `slots` responses. Freed when a rollout ends: graphs find the next one through `place`."""

    def __init__(self, model: Any, slots: int, length: int, place: Tensor) -> None:
        shape, layers = cache_shape(model.config)
        heads, dim = shape
        self.tensors = [
            torch.empty(2, slots, heads, length, dim, dtype=model.dtype, device=model.device)
            for _ in range(layers)
        ]
        addresses = [half.data_ptr() for tensor in self.tensors for half in tensor]
        place.copy_(torch.tensor([length, slots, *addresses]))


class Prefill(PackedRows):
    """Prompts packed; what they attend to also goes into the cache."""

    def __init__(self, lengths: list[int], slots: Tensor, place: Tensor) -> None:
        super().__init__(lengths, slots.device)
        self.slots, self.place = (
            slots.repeat_interleave(
                torch.tensor(lengths, device=slots.device), output_size=self.total
            ),
            place,
        )

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        write_cache(k, v, self.place, layer, self.slots, self.positions)
        return super().attend(layer, q, k, v, scale, window)


class State:
    """What the rows of a step are at: fixed memory, which graphs read and write.

    Row i belongs to prompt `request[i]` of the call, which is row `number[i]` of the training step.
    """

    def __init__(self, rows: int, prompts: int, limit: int, place: Tensor) -> None:
        device = place.device
        self.place = place
        self.number, self.request, self.slot, self.token, self.position, self.step = torch.zeros(
            6, rows, dtype=torch.long, device=device
        )
        self.alive = torch.zeros(rows, dtype=torch.int32, device=device)
        self.responses = torch.zeros(prompts, limit, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(prompts, limit, dtype=torch.float32, device=device)
        self.ended = torch.zeros(prompts, dtype=torch.int32, device=device)
        self.stop = torch.full((_STOPS,), -1, dtype=torch.long, device=device)
        self.seed = torch.zeros(1, dtype=torch.long, device=device)
        self.noise = torch.ones(1, dtype=torch.float32, device=device)

    def begin(self, stop: Tensor, seed: int, greedy: bool, limits: Sequence[int]) -> None:
        self.limits = torch.tensor(limits, device=self.place.device)
        self.first = (
            self.responses.shape[1] - self.limits
        )  # graphs know one limit: who may write less starts further on
        self.stop.fill_(-1)[: len(stop)] = stop
        self.seed.fill_(seed)
        self.noise.fill_(0.0 if greedy else 1.0)
        for part in (self.responses, self.log_probs, self.ended):
            part.zero_()

    def rollout(self, prompts: int, pad: int) -> Rollout:
        """What the first `prompts` requests have become."""
        t = torch.arange(int(self.limits.max()), device=self.limits.device)
        places = (self.first[:, None] + t).clamp(max=self.responses.shape[1] - 1)
        responses, log_probs = (
            part[:prompts].gather(1, places) for part in (self.responses, self.log_probs)
        )
        ended = self.ended[:prompts].bool()
        stops = torch.isin(responses, self.stop)
        lengths = torch.where(ended, stops.int().argmax(1) + 1, self.limits)
        longest = int(lengths.max())
        past = t[:longest] >= lengths[:, None]
        return Rollout(
            responses[:, :longest].masked_fill(past, pad),
            lengths,
            log_probs[:, :longest].masked_fill(past, 0.0),
            ~ended,
        )

    def rows(self) -> tuple[Tensor, ...]:
        return (
            self.number,
            self.request,
            self.slot,
            self.token,
            self.position,
            self.step,
            self.alive,
        )


class Decode:
    """One token of each of the first `count` rows, attending to the row's slot of the cache."""

    def __init__(self, state: State, count: int) -> None:
        self.place, self.slots, self.positions = (
            state.place,
            state.slot[:count],
            state.position[:count],
        )

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        return attend_cache(q, k, v, self.place, layer, self.slots, self.positions, scale, window)


class GraphSampler(TorchSampler):
    """Falls back to the eager sampler, with a word in the log, where a step cannot be captured."""

    capture = True
    """Off, the same steps run one by one: what the graphs are tested against."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: State | None = None
        self._graphs: dict[int, Callable[[], None]] = {}
        self._pool: Any = None
        self._works = True

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        seed: int,
        greedy: bool = False,
        rows: Sequence[int] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Rollout:
        if self._works and len(self.stop) <= _STOPS:
            try:
                return self._run(
                    input_ids, attention_mask, seed, greedy, rows or range(len(input_ids)), limits
                )
            except (RuntimeError, NotImplementedError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self._works = False
                self._graphs.clear()
                _log.warning(
                    "sampling step by step, which is slower: no CUDA graph (%s)",
                    str(error).splitlines()[0],
                )
        return super().generate(
            input_ids, attention_mask, seed=seed, greedy=greedy, rows=rows, limits=limits
        )

    def _run(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        seed: int,
        greedy: bool,
        numbers: Sequence[int],
        limits: Sequence[int] | None,
    ) -> Rollout:
        most, device = self.config.max_response_tokens, input_ids.device
        limits = limits or [most] * len(input_ids)
        limit = max(limits)
        mask = attention_mask.bool().cpu()
        prompts = [row[keep].tolist() for row, keep in zip(input_ids.cpu(), mask, strict=True)]
        slots = self._slots_that_fit(max(map(len, prompts)) + limit)
        # as many as there are prompts, or a size for which there will be a graph the next time too
        slots = (
            len(prompts)
            if slots >= len(prompts)
            else max([size for size in _BUCKETS if size <= slots], default=slots)
        )
        state = self._prepare(slots, len(prompts), most)
        cache = Cache(
            self.model, slots + 1, max(map(len, prompts)) + limit, state.place
        )  # one slot more, for rows that only fill a bucket
        state.begin(self.stop, seed, greedy, limits)
        waiting, free = list(range(len(prompts))), list(range(slots))
        count = bucket = left = (
            0  # rows that run, rows of the graph, steps after which every row has met the limit
        )
        while count or waiting:
            if waiting and (len(free) >= max(slots // 4, 1) or not count):
                chosen, waiting = waiting[: len(free)], waiting[len(free) :]
                state.number[count : count + len(chosen)] = torch.tensor(
                    [numbers[i] for i in chosen], device=device
                )
                self._admit(
                    state, count, chosen, [free.pop() for _ in chosen], [prompts[i] for i in chosen]
                )
                count, bucket, left = count + len(chosen), 0, limit - 1
            if not bucket or _bucket(count, slots) < bucket:
                bucket = _bucket(count, slots)
                state.alive[count:bucket] = 0
                state.slot[count:bucket] = slots
                state.position[count:bucket] = 0
            step = self._step(state, bucket)
            for _ in range(min(LOOK_EVERY, left)):
                step()
            left -= LOOK_EVERY
            alive = state.alive[:count].bool().cpu()
            if not alive.all():
                free += state.slot[:count].cpu()[~alive].tolist()
                kept = alive.nonzero().squeeze(1).to(device)
                count = len(kept)
                for part in state.rows():
                    part[:count] = part[kept]
        del cache
        return state.rollout(len(prompts), self.pad)

    def _admit(
        self,
        state: State,
        start: int,
        requests: list[int],
        slots: list[int],
        prompts: list[list[int]],
    ) -> None:
        """Puts prompts into slots: fills the cache and draws their first tokens."""
        device = state.place.device
        while prompts:
            ends = list(itertools.accumulate(map(len, prompts)))
            count = max(bisect.bisect_right(ends, PREFILL_TOKENS), 1)
            rows, lengths = slice(start, start + count), [len(prompt) for prompt in prompts[:count]]
            state.request[rows] = torch.tensor(requests[:count], device=device)
            state.slot[rows] = torch.tensor(slots[:count], device=device)
            state.position[rows] = torch.tensor(lengths, device=device) - 1
            state.step[rows] = state.first[state.request[rows]]
            state.alive[rows] = 1
            layout = Prefill(lengths, state.slot[rows], state.place)
            ids = torch.tensor(
                [token for prompt in prompts[:count] for token in prompt], device=device
            )
            hidden = hidden_states(self.model.base_model, ids[None], layout.positions[None], layout)
            self._draw(state, hidden[layout.to_device(layout.ends - 1)], rows)
            start, requests, slots, prompts = (
                start + count,
                requests[count:],
                slots[count:],
                prompts[count:],
            )

    def _step(self, state: State, count: int) -> Callable[[], None]:
        """One decode step of the first `count` rows, as a graph that is captured when first needed."""

        def step() -> None:
            ids, positions = state.token[:count, None], state.position[:count, None]
            self._draw(
                state,
                hidden_states(self.model.base_model, ids, positions, Decode(state, count)),
                slice(0, count),
            )

        if not self.capture:
            return step
        if count not in self._graphs:
            alive = state.alive.clone()
            state.alive.zero_()  # so that warming up changes nothing
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with capturing(graph, self._pool):
                step()
            self._graphs[count] = graph.replay
            state.alive.copy_(alive)
        return self._graphs[count]

    def _draw(self, state: State, hidden: Tensor, rows: slice) -> None:
        head = self.model.get_output_embeddings()
        logits = logits_of(hidden, head.weight, head.bias)  # [n, V]
        allowed = logits
        if self.config.top_p < 1 or self.config.top_k:
            allowed = restrict(
                logits.float() / self.config.temperature,
                top_k=self.config.top_k,
                top_p=self.config.top_p,
            )
            allowed = allowed * self.config.temperature
        sample_tokens(
            logits, allowed, state.number[rows], state.request[rows], state.token[rows], state.position[rows], state.step[rows],
            state.alive[rows],
            state.responses, state.log_probs, state.ended, state.stop, state.seed, state.noise, self.config.temperature,
        )  # fmt: skip

    def _prepare(self, slots: int, prompts: int, limit: int) -> State:
        """The state's memory, which graphs are bound to: made anew only where it is too small."""
        state = self._state
        if state is None or len(state.slot) < slots or len(state.responses) < prompts:
            self._graphs.clear()
            self._pool = None
            layers = cache_shape(self.model.config)[1]
            place = torch.zeros(2 + 2 * layers, dtype=torch.long, device=self.model.device)
            state = self._state = State(_bucket(slots, slots), prompts, limit, place)
        return state

    def _slots_that_fit(self, length: int) -> int:
        """Slots of this length for which the cache takes at most `gpu_memory_utilization` of the memory that is free."""
        if self.model.device.type != "cuda":
            return 1 << 30
        free, _ = torch.cuda.mem_get_info(self.model.device)
        free += (
            torch.cuda.memory_reserved(self.model.device)
            - torch.cuda.memory_allocated(self.model.device)
            - self.model.graph_memory.idle
        )
        (heads, dim), layers = cache_shape(self.model.config)
        return max(
            int(free * self.config.gpu_memory_utilization)
            // (2 * layers * heads * dim * length * self.model.dtype.itemsize)
            - 1,
            1,
        )


def _bucket(count: int, most: int) -> int:
    """The smallest size with a graph that holds `count` rows."""
    return min(next((size for size in _BUCKETS if size >= count), count), max(most, count))
