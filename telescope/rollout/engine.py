"""The GPU sampler: the actor's own weights, a KV cache of slots, one CUDA graph per decode step.

A step feeds every running row its last token and draws the next one, all inside the graph. Every
few steps the host looks which rows have ended. Their slots go to waiting prompts, and a smaller
graph takes over when few rows are left.
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
from telescope.models.fast.decode_kernels import sample_tokens
from telescope.models.fast.packed import hidden_states, logits_of
from telescope.rollout.decode import MAX_STOPS, Cache, Decode, DecodeState, Prefill
from telescope.rollout.sampler import Rollout, TorchSampler, cache_shape, restrict, unpadded

LOOK_EVERY = 16  # steps between looks at which rows have ended
PREFILL_TOKENS = 32_768  # of prompts that go through the model at once
_SMALL_GRAPHS = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
_GRAPH_SIZES = [*_SMALL_GRAPHS, *range(384, 1025, 128), *range(1280, 8193, 256)]
"""Numbers of rows for which graphs are captured."""
_log = logging.getLogger("telescope")


class GraphSampler(TorchSampler):
    """Samples with CUDA graphs. If a step cannot be captured, warns and samples without graphs."""

    capture = True
    """False runs the same steps without graphs: what the graphs are tested against."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: DecodeState | None = None
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
        """See `Sampler.generate`."""
        if self._works and len(self.stop) <= MAX_STOPS:
            numbers = rows or range(len(input_ids))
            try:
                return self._run(input_ids, attention_mask, seed, greedy, numbers, limits)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError) as error:
                self._works = False
                self._graphs.clear()
                reason = str(error).splitlines()[0]
                _log.warning("sampling step by step, which is slower: no CUDA graph (%s)", reason)
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
        """Answers all prompts: admits them to free slots, and steps until every row has ended."""
        limits = limits or [self.config.max_response_tokens] * len(input_ids)
        limit = max(limits)
        prompts = unpadded(input_ids, attention_mask)
        length = max(map(len, prompts)) + limit
        slots = self._choose_slots(len(prompts), length)
        state = self._prepare_state(slots, len(prompts))
        # one slot more, for rows that only fill up a graph
        cache = Cache(self.model, slots + 1, length, state.table)
        state.begin(self.stop, seed, greedy, limits)
        waiting = list(range(len(prompts)))
        free = list(range(slots))
        running = 0
        size = 0  # rows of the graph in use; 0: choose one
        steps_left = 0  # after so many steps every row has reached the limit
        while running or waiting:
            if waiting and (len(free) >= max(slots // 4, 1) or not running):
                chosen = waiting[: len(free)]
                waiting = waiting[len(free) :]
                rows = slice(running, running + len(chosen))
                own_numbers = [numbers[request] for request in chosen]
                state.number[rows] = torch.tensor(own_numbers, device=input_ids.device)
                own_slots = [free.pop() for _ in chosen]
                self._admit(state, running, chosen, own_slots, [prompts[i] for i in chosen])
                running += len(chosen)
                size = 0
                steps_left = limit - 1
            smallest = _graph_size(running, slots)
            if not size or smallest < size:
                size = smallest
                state.fill_up(running, size, spare_slot=slots)
            step = self._step(state, size)
            for _ in range(min(LOOK_EVERY, steps_left)):
                step()
            steps_left -= LOOK_EVERY
            freed = state.remove_finished(running)
            running -= len(freed)
            free += freed
        del cache
        return state.rollout(len(prompts), self.pad)

    def _choose_slots(self, prompts: int, length: int) -> int:
        """One slot per prompt if they fit, else a number for which there are graphs."""
        fitting = self._slots_that_fit(length)
        if fitting >= prompts:
            return prompts
        return max([size for size in _GRAPH_SIZES if size <= fitting], default=fitting)

    def _slots_that_fit(self, length: int) -> int:
        """Slots of this length that fit into `gpu_memory_utilization` of the free memory."""
        device = self.model.device
        if device.type != "cuda":
            return 1 << 30
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free -= self.model.graph_memory.idle
        (heads, size), layers = cache_shape(self.model.config)
        bytes_per_slot = 2 * layers * heads * size * length * self.model.dtype.itemsize
        slots: int = int(free * self.config.gpu_memory_utilization) // bytes_per_slot
        return max(slots - 1, 1)

    def _prepare_state(self, slots: int, prompts: int) -> DecodeState:
        """The state that graphs are bound to; made anew only if it is too small."""
        state = self._state
        if state is None or len(state.slot) < slots or len(state.responses) < prompts:
            self._graphs.clear()
            self._pool = None
            _, layers = cache_shape(self.model.config)
            table = torch.zeros(2 + 2 * layers, dtype=torch.long, device=self.model.device)
            rows = _graph_size(slots, slots)
            state = DecodeState(rows, prompts, self.config.max_response_tokens, table)
            self._state = state
        return state

    def _admit(
        self,
        state: DecodeState,
        start: int,
        requests: list[int],
        slots: list[int],
        prompts: list[list[int]],
    ) -> None:
        """Puts prompts into slots, rows from `start` on: fills the cache, draws first tokens."""
        while prompts:
            ends = list(itertools.accumulate(map(len, prompts)))
            count = max(bisect.bisect_right(ends, PREFILL_TOKENS), 1)
            some = prompts[:count]
            rows = slice(start, start + count)
            lengths = [len(prompt) for prompt in some]
            state.admit(rows, requests[:count], slots[:count], lengths)
            layout = Prefill(lengths, state.slot[rows], state.table)
            tokens = [token for prompt in some for token in prompt]
            ids = torch.tensor(tokens, device=state.table.device)
            hidden = hidden_states(self.model.base_model, ids[None], layout.positions[None], layout)
            self._draw(state, hidden[layout.to_device(layout.ends - 1)], rows)
            start += count
            requests = requests[count:]
            slots = slots[count:]
            prompts = prompts[count:]

    def _step(self, state: DecodeState, count: int) -> Callable[[], None]:
        """One decode step of the first `count` rows; its graph is captured on first use."""

        def step() -> None:
            ids = state.token[:count, None]
            positions = state.position[:count, None]
            layout = Decode(state, count)
            hidden = hidden_states(self.model.base_model, ids, positions, layout)
            self._draw(state, hidden, slice(0, count))

        if not self.capture:
            return step
        if count not in self._graphs:
            self._graphs[count] = self._captured(state, step)
        return self._graphs[count]

    def _captured(self, state: DecodeState, step: Callable[[], None]) -> Callable[[], None]:
        """Captures a step as a graph, after a warm-up."""
        alive = state.alive.clone()
        state.alive.zero_()  # so that the warm-up changes nothing
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with capturing(graph, self._pool):
            step()
        state.alive.copy_(alive)
        return graph.replay

    def _draw(self, state: DecodeState, hidden: Tensor, rows: slice) -> None:
        """Draws the next token of each row and moves the row on."""
        config = self.config
        head = self.model.get_output_embeddings()
        logits = logits_of(hidden, head.weight, head.bias)  # [n, V]
        allowed = logits
        if config.top_p < 1 or config.top_k:
            tempered = logits.float() / config.temperature
            allowed = restrict(tempered, top_k=config.top_k, top_p=config.top_p)
            allowed = allowed * config.temperature
        sample_tokens(
            logits,
            allowed,
            state.number[rows],
            state.request[rows],
            state.token[rows],
            state.position[rows],
            state.step[rows],
            state.alive[rows],
            state.responses,
            state.log_probs,
            state.ended,
            state.stop,
            state.seed,
            state.noise,
            config.temperature,
        )


def _graph_size(count: int, most: int) -> int:
    """The smallest size with a graph that holds `count` rows, but at most `most`."""
    size = next((size for size in _GRAPH_SIZES if size >= count), count)
    return min(size, max(most, count))
