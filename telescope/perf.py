"""What a step cost: seconds of each phase, tokens per second, memory, and the share of the device's arithmetic that training used."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.models.capture import Captured

_GIB = 2**30


class Timer:
    """Seconds of each phase, as timing/*. On a GPU they are read off its own clock when the step is over: nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.began = device, time.perf_counter()
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
            allocated, reserved = torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
            Captured.peak = max(Captured.peak, allocated)
            peak = min(allocated + Captured.idle, reserved)  # what a graph works in is not allocated
            torch.cuda.reset_peak_memory_stats(self.device)
            return peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class Cost:
    """What a forward of a model takes."""

    matrices: int
    """Weights of all layers' matrices."""
    head: int
    """Weights of the output layer; a critic has none to speak of."""
    attention: int
    """Layers × width of all queries."""
    frozen: tuple[int, int] = (0, 0)
    """How many of the matrices' and of the head's weights get no gradient."""

    def forward_flops(self, batch: TokenBatch) -> float:
        """Multiplications and additions over the batch: two per weight and token, the output layer's for response tokens alone."""
        lengths = batch.row_lengths()
        attention = 2.0 * self.attention * sum(n * n for n in lengths)
        return 2.0 * self.matrices * sum(lengths) + attention + 2.0 * self.head * sum(batch.host("response"))

    def training_flops(self, batch: TokenBatch, epochs: int) -> float:
        """A backward is twice a forward, once for frozen weights. What is computed again to save memory does not count."""
        matrices, head = self.frozen
        frozen = Cost(matrices, head, 0)
        return (3 * self.forward_flops(batch) - frozen.forward_flops(batch)) * epochs


def cost_of(model: Any) -> Cost:
    backbone = getattr(model, "backbone", model)
    head, embeddings = backbone.get_output_embeddings(), backbone.get_input_embeddings().weight
    config = backbone.config.get_text_config()
    width = config.num_attention_heads * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    matrices = [p for p in backbone.base_model.parameters() if p.dim() == 2 and p is not embeddings]
    output = [] if head is None else [head.weight]
    return Cost(
        matrices=sum(p.numel() for p in matrices),
        head=sum(p.numel() for p in output),
        attention=config.num_hidden_layers * width,
        frozen=(sum(p.numel() for p in matrices if not p.requires_grad), sum(p.numel() for p in output if not p.requires_grad)),
    )


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


def expected_hours(config: Config, actor: Any, prompts: Sequence[Sequence[int]], steps: int) -> float:
    """A rough upper bound of `steps` steps without a GPU, from the speed of a matrix product: responses as long as they may be.

    Passes over a step's tokens: sampling, values, reference, π_old, and 3 per epoch of actor and critic. Real layers reach about half
    of a large product's speed.
    """
    cost, rollout = cost_of(actor.model), config.rollout
    row = sum(map(len, prompts)) / len(prompts) + rollout.max_response_tokens
    passes = 4.0 + 3 * config.actor.epochs + (3 * config.critic.epochs if config.credit.by_critic else 0)
    tokens = rollout.batch_size * rollout.n * row * passes * steps
    return 2.0 * (cost.matrices * tokens + cost.head * tokens / passes * (passes - 2)) / (0.5 * matmul_flops(torch.device("cpu"))) / 3600
