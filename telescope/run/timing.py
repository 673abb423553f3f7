"""What a step cost: seconds of each phase, tokens per second, memory, and the share of the device's arithmetic that training used."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.models.fast.capture import GraphMemory
from telescope.models.flops import cost_of

_GIB = 2**30


class Timer:
    """Seconds of each phase, as timing/*. On a GPU they are read off its own clock when the step is over: nothing waits."""

    def __init__(self, device: torch.device, graphs: GraphMemory | None = None) -> None:
        self.device = device
        self.graphs = graphs or GraphMemory()
        self.began = time.perf_counter()
        self._marks: dict[str, tuple[Any, Any]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._mark()
        yield
        self._marks[name] = start, self._mark()

    def metrics(self, batch: TokenBatch, flops: float) -> dict[str, float]:
        """timing/* and perf/*; `flops` is what the update phases had to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        step, peak = time.perf_counter() - self.began, self._peak()
        seconds = {f"timing/{name}": self.seconds(name) for name in self._marks}
        training = sum(seconds.get(f"timing/update_{role}", 0.0) for role in ("actor", "critic"))
        return {
            **seconds,
            "timing/step": step,
            "perf/tokens_per_s": batch.num_tokens / step,
            "perf/mfu": flops / max(training, 1e-9) / matmul_flops(self.device),
            "perf/peak_gib": peak / _GIB,
        }

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, name: str) -> float:
        start, end = self._marks[name]
        return start.elapsed_time(end) / 1e3 if self.device.type == "cuda" else end - start

    def _peak(self) -> int:
        if self.device.type == "cuda":
            allocated, reserved = (
                torch.cuda.max_memory_allocated(self.device),
                torch.cuda.max_memory_reserved(self.device),
            )
            self.graphs.peak = max(self.graphs.peak, allocated)
            # What a graph works in is reserved, not allocated.
            peak = min(allocated + self.graphs.idle, reserved)
            torch.cuda.reset_peak_memory_stats(self.device)
            return peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@functools.cache
def matmul_flops(device: torch.device) -> float:
    """Operations per second of a large matrix product: what a perfect training step could reach. Measured once."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    a = torch.full((size, size), 0.5, dtype=dtype, device=device)
    best = 0.0
    for _ in range(6):
        timer = Timer(device)
        with timer("product"):
            torch.mm(a, a)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = max(best, 2.0 * size**3 / timer.seconds("product"))
    return best


def expected_hours(
    config: Config, actor: Any, prompts: Sequence[Sequence[int]], steps: int
) -> float:
    """A rough upper bound of `steps` steps without a GPU, from the speed of a matrix product: responses as long as they may be.

    Passes over a step's tokens: sampling, values, reference, π_old, and 3 per epoch of actor and critic. Real layers reach about half
    of a large product's speed.
    """
    cost, rollout = cost_of(actor.model), config.rollout
    row = sum(map(len, prompts)) / len(prompts) + rollout.max_response_tokens
    passes = (
        4.0 + 3 * config.actor.epochs + (3 * config.critic.epochs if config.credit.by_critic else 0)
    )
    tokens = rollout.batch_size * rollout.n * row * passes * steps
    return (
        2.0
        * (cost.matrices * tokens + cost.head * tokens / passes * (passes - 2))
        / (0.5 * matmul_flops(torch.device("cpu")))
        / 3600
    )
