"""What a step cost: seconds per phase, tokens per second, memory, and model FLOPs utilization."""

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
from telescope.models.flops import Cost

_GIB = 2**30


class Timer:
    """Measures the seconds of each phase of a step, as timing/*.

    On a GPU the times are CUDA events, read when the step is over, so timing never waits.
    """

    def __init__(self, device: torch.device, graphs: GraphMemory | None = None) -> None:
        self.device = device
        self.graphs = graphs or GraphMemory()
        self.began = time.perf_counter()
        self._marks: dict[str, tuple[Any, Any]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Times the `with` block as phase `name`."""
        start = self._mark()
        yield
        self._marks[name] = (start, self._mark())

    def metrics(self, batch: TokenBatch, flops: float) -> dict[str, float]:
        """Returns timing/* and perf/* of the step. `flops` are those of the update phases."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        step = time.perf_counter() - self.began
        peak = self._peak_bytes()
        seconds = {f"timing/{name}": self.seconds(name) for name in self._marks}
        updates = ("timing/update_actor", "timing/update_critic")
        training = sum(seconds.get(name, 0.0) for name in updates)
        return {
            **seconds,
            "timing/step": step,
            "perf/tokens_per_s": batch.num_tokens / step,
            "perf/mfu": flops / max(training, 1e-9) / matmul_flops(self.device),
            "perf/peak_gib": peak / _GIB,
        }

    def seconds(self, name: str) -> float:
        """Returns the seconds of one phase. On a GPU, synchronize first."""
        start, end = self._marks[name]
        if self.device.type == "cuda":
            return float(start.elapsed_time(end)) / 1e3
        return float(end - start)

    def _mark(self) -> Any:
        """Returns a point in time: a CUDA event, or a number of seconds."""
        if self.device.type != "cuda":
            return time.perf_counter()
        new_event: Any = torch.cuda.Event  # torch declares no types for it
        event = new_event(enable_timing=True)
        event.record()
        return event

    def _peak_bytes(self) -> int:
        """Returns the peak bytes since the last call: of the GPU, or of this process."""
        if self.device.type != "cuda":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        allocated = torch.cuda.max_memory_allocated(self.device)
        reserved = torch.cuda.max_memory_reserved(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.graphs.peak = max(self.graphs.peak, allocated)
        # The working memory of a CUDA graph is reserved, but not counted as allocated.
        return min(allocated + self.graphs.idle, reserved)


@functools.cache
def matmul_flops(device: torch.device) -> float:
    """Operations per second of a large matrix product: the most that training could reach.

    Measured once per process.
    """
    is_cuda = device.type == "cuda"
    size = 8192 if is_cuda else 512
    dtype = torch.bfloat16 if is_cuda else torch.float32
    a = torch.full((size, size), 0.5, dtype=dtype, device=device)
    best = 0.0
    for _ in range(6):
        timer = Timer(device)
        with timer("product"):
            torch.mm(a, a)
        if is_cuda:
            torch.cuda.synchronize(device)
        best = max(best, 2.0 * size**3 / timer.seconds("product"))
    return best


def expected_hours(
    config: Config, cost: Cost, prompts: Sequence[Sequence[int]], steps: int
) -> float:
    """Estimates an upper bound of the hours that `steps` steps take without a GPU.

    Measures the speed of a large matrix product. Assumes responses of the maximal length, and
    layers that reach half that speed. Passes over a step's tokens: sampling, values, reference and
    π_old, and 3 for each epoch of actor and critic. All but two of them use the output layer.
    """
    rollout = config.rollout
    passes = 4.0 + 3 * config.actor.epochs
    if config.credit.by_critic:
        passes += 3 * config.critic.epochs
    prompt_length = sum(map(len, prompts)) / len(prompts)
    row_length = prompt_length + rollout.max_response_tokens
    tokens = rollout.batch_size * rollout.n * row_length * steps
    flops = 2.0 * tokens * (cost.matrices * passes + cost.head * (passes - 2))
    speed = 0.5 * matmul_flops(torch.device("cpu"))
    return flops / speed / 3600
