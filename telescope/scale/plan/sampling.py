"""What sampling takes: a copy of the policy, its cache, and the time of decoding."""

from __future__ import annotations

from dataclasses import dataclass

from telescope.scale.plan.job import Job
from telescope.scale.plan.shapes import GIB, Shape, ceil_div

LAUNCH = 0.9e-3
"""Seconds of a CPU to launch a layer's forward; a backward is two.

Measured: 135M, 5 micro-batches took 414 ms.
"""
ADAPTERS_LAUNCH = 1.8e-3
"""The same of a layer's adapters.

From one measurement: 135M with LoRA took 0.64 s besides the rollout, 0.42 s without.
"""
GRAPH = 50e-6
"""Seconds of a layer in a decode graph besides reading weights and cache.

Measured: 46 µs at 135M, 57 µs at 1.5B.
"""
ADAPTERS_GRAPH = 115e-6
"""The same of a layer's adapters. Measured: a rollout of 135M took 0.67 s instead of 0.23 s."""

VLLM_ROW = 50e-6
"""Seconds of vLLM's CPU per row and token: seeds and log-probs are per row.

From one measurement: 135M, 256 rows, an update took 1.5 s longer than with the built-in sampler.
"""
VLLM_KEPT = 4 * GIB
"""What vLLM keeps, its CUDA graphs above all.

From one measurement: 135M, 10.5 GiB instead of 6.5 while it slept.
"""
VLLM_ROWS = 1024  # as MOST_ROWS in rollout/vllm.py, which imports torch
VLLM_BLOCK = 128  # as there


@dataclass(frozen=True)
class Sampling:
    """Bytes on a GPU that samples, besides what is there already."""

    weights: float
    """A copy of the policy, or its gathered weights, or this GPU's part of it."""
    cache: float
    draw: float
    """Logits of a token of all rows, and what a draw makes of them."""
    prefill: float
    """Activations of the prompts that vLLM reads at once."""
    kept: float
    """What vLLM keeps between rollouts."""
    slots: int
    """Rows that are sampled at once."""

    @property
    def besides(self) -> float:
        """What is neither weights nor cache."""
        return self.draw + self.prefill + self.kept

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.besides


def is_vllm(job: Job) -> bool:
    return job.config.rollout.engine == "vllm"


def uses_graphs(job: Job) -> bool:
    """Whether decode steps are CUDA graphs. Shards cannot be captured, copies can."""
    return job.config.rollout.cuda_graphs and (
        not job.is_sharded or job.samples_apart or is_vllm(job)
    )


def sampled_rows(job: Job) -> int:
    """Responses of the sampler that has most."""
    samplers = job.samplers if job.samples_apart else job.workers
    return ceil_div(job.total, samplers)


def sampling_of(job: Job, always: float, at_start: float) -> Sampling:
    """What sampling adds to the bytes that a GPU `always` holds.

    `at_start`: to what it holds before the first update, when vLLM takes its cache.
    """
    if is_vllm(job):
        return _vllm(job, at_start)
    weights = 0
    if job.samples_apart or job.is_sharded:  # a copy, or the gathered actor
        weights = job.bytes * job.actor.policy
    graphs = uses_graphs(job)
    rows = sampled_rows(job)
    row_bytes = job.bytes * job.actor.cached() * job.row
    slots = rows
    if graphs:
        # As many slots as the cache's share of the memory holds.
        free = job.rates.memory - always - (weights if job.samples_apart else 0)
        fitting = int(job.config.rollout.gpu_memory_utilization * free / max(row_bytes, 1)) - 1
        slots = min(rows, fitting) if fitting > 0 else rows
    # Logits; without graphs also their softmax and its float64 sums.
    draw = slots * job.actor.vocabulary * (4 if graphs else 24)
    return Sampling(weights, row_bytes * (slots + graphs), draw, 0.0, 0.0, slots)


def _vllm(job: Job, at_start: float) -> Sampling:
    config = job.config.rollout
    split = job.tensor_parallel if job.samples_apart else 1
    slots = min(sampled_rows(job), VLLM_ROWS)
    tokens = ceil_div(job.row, VLLM_BLOCK) * VLLM_BLOCK
    row_bytes = job.bytes * job.actor.cached(split) * tokens
    allowed = config.gpu_memory_utilization * (job.rates.memory - at_start)
    cache = min((slots + 1) * row_bytes, max(allowed, row_bytes))
    # vLLM's own defaults: the larger one for GPUs of 70 GiB.
    at_once = min(16384 if job.rates.gib >= 70 else 8192, sampled_rows(job) * job.prompt)
    prefill = job.bytes * at_once * (3 * job.actor.intermediate / split + 2 * job.actor.hidden)
    return Sampling(
        weights=job.bytes * job.actor.policy / split,
        cache=cache,
        draw=slots * job.actor.vocabulary * 24,
        prefill=prefill,
        kept=VLLM_KEPT if config.cuda_graphs else 0,
        slots=max(min(slots, int(cache / max(row_bytes, 1))), 1),
    )


def decode_seconds(job: Job, slots: int) -> float:
    """Seconds to write all responses."""
    shape = job.actor
    split = job.tensor_parallel if job.samples_apart else 1
    rows = sampled_rows(job)
    graphs = uses_graphs(job)
    rate = job.rates.tflops * 1e12 * split
    weights = (shape.matrices + shape.table) / split
    length = job.prompt + job.response / 2
    cached = job.bytes * slots * shape.cached(split) * length
    # Without graphs our sampler copies the cache, to grow.
    read = job.bytes * weights + cached * (1 if graphs or is_vllm(job) else 3)
    token = read / job.rates.bandwidth / 1e12
    token = max(token, 2.0 * slots * weights * split / rate)
    token += unpacking_seconds(job, shape)
    # Two sums per layer over the GPUs of a sampler.
    summed = 2 * shape.layers * slots * shape.hidden * job.bytes
    token += 2 * (split - 1) / split * summed / (job.rates.network * 1e9)
    merged = is_vllm(job) or job.samples_apart
    adapters = job.lora and not merged
    if graphs:
        token += shape.layers * (GRAPH + adapters * ADAPTERS_GRAPH)
    else:
        token = max(token, shape.layers * (LAUNCH + adapters * ADAPTERS_LAUNCH))
    if is_vllm(job):
        token = max(token, slots * VLLM_ROW)
    prefill = 2.0 * rows * job.prompt * shape.matrices / rate
    return ceil_div(rows, slots) * job.response * token + prefill


def unpacking_seconds(job: Job, shape: Shape) -> float:
    """Reading all quantised weights of a model, and writing them whole."""
    if not job.quantized:
        return 0.0
    return (job.quantized + job.bytes) * shape.matrices / job.rates.bandwidth / 1e12
