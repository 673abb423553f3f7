"""telescope plan: what a recipe takes on some number of GPUs, by arithmetic: memory, network, time. Imports no torch.

One GPU is the backend `local`; more are `ray`, with every model sliced over all GPUs (FSDP2), or over `ray.fsdp_size` of them, and
every role on all of them; workers of the critic's own are not planned for. Sizes of weights, optimizer states, gradients and cache
follow from the shape, norms and biases left out; activations, what FSDP holds meanwhile and all times are estimates, whose errors are
in docs/scale.md. For dense decoders with gated units.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telescope.config import Config, OptimizerConfig, load_config
from telescope.errors import TelescopeError

GIB = 2**30
LOGITS = 2**26  # as in models/packed.py, which imports torch
LAUNCH = 0.9e-3  # s of a CPU to launch a layer's forward (a backward is two): 135M, 5 micro-batches took 414 ms
GRAPH = 50e-6  # s of a layer in a decode graph besides reading weights and cache: 46 µs at 135M, 57 µs at 1.5B


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool

    @property
    def layer(self) -> int:
        """Weights of one layer."""
        return (
            2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
            + 3 * self.hidden * self.intermediate
        )

    @property
    def matrices(self) -> int:
        """Weights of all layers."""
        return self.layers * self.layer

    @property
    def table(self) -> int:
        """Weights of the embeddings; the output layer has as many, or shares them."""
        return self.hidden * self.vocabulary

    @property
    def policy(self) -> int:
        return self.matrices + self.table * (1 if self.tied else 2)

    @property
    def critic(self) -> int:
        """Without an output layer to speak of."""
        return self.matrices + self.table

    @property
    def saved(self) -> int:
        """Numbers per token that a layer keeps for its gradient.

        2 residuals and 2 norms; q, k, v, q and k rotated, what was attended to; gate, up and their product.
        """
        return (
            4 * self.hidden
            + 3 * self.head_dim * (self.heads + self.kv_heads)
            + 3 * self.intermediate
        )

    @property
    def cached(self) -> int:
        """Numbers per token in the KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim


SHAPES = {
    "135M": Shape(576, 30, 9, 3, 64, 1536, 49152, True),  # SmolLM2
    "0.5B": Shape(896, 24, 14, 2, 64, 4864, 151936, True),  # Qwen2.5
    "1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151936, True),
    "7B": Shape(3584, 28, 28, 4, 128, 18944, 152064, False),
    "8B": Shape(4096, 32, 32, 8, 128, 14336, 128256, False),  # Llama 3.1
    "70B": Shape(8192, 80, 64, 8, 128, 28672, 128256, False),
}

NONE = Shape(0, 0, 0, 0, 0, 0, 1, True)
"""A critic of zeros."""


@dataclass(frozen=True)
class Rates:
    """What a GPU has, and is assumed to reach."""

    tflops: float = 400.0
    bandwidth: float = 4.0
    network: float = 50.0
    gib: float = 80.0


@dataclass(frozen=True)
class Trained:
    """Actor or critic, and how the rows of one GPU go through it."""

    shape: Shape
    weights: int
    head: int
    """Weights of the output layer; the critic's does not count."""
    steps: int
    """Optimizer steps per rollout."""
    passes: int
    """Micro-batches per optimizer step, of `pass_rows` rows each."""
    pass_rows: int
    forwards: int
    """Passes without a gradient over all rows, of `forward_rows` each."""
    forward_rows: int


@dataclass(frozen=True)
class Job:
    config: Config
    gpus: int
    actor: Shape
    critic: Shape
    prompt: int
    response: int
    rates: Rates = Rates()

    @property
    def total(self) -> int:
        """Responses per step."""
        return self.config.rollout.batch_size * self.config.rollout.n

    @property
    def rows(self) -> int:
        """Responses of the GPU that has most."""
        return -(-self.total // self.gpus)

    @property
    def row(self) -> int:
        return self.prompt + self.response

    @property
    def sliced(self) -> bool:
        return self.gpus > 1

    @property
    def slices(self) -> int:
        """GPUs that share one copy of the models."""
        return min(self.config.ray.fsdp_size or self.gpus, self.gpus)

    @property
    def bytes(self) -> int:
        """Of a number in a forward."""
        return 2 if self.config.model.dtype == "bfloat16" else 4

    @property
    def graphs(self) -> bool:
        return self.config.rollout.cuda_graphs and not self.sliced

    @property
    def roles(self) -> tuple[Trained, Trained]:
        """Critic, actor: the order of their updates."""

        def trained(shape: Shape, weights: int, head: int, settings: OptimizerConfig) -> Trained:
            share = -(-self.total // (settings.minibatches * self.gpus))
            passes = -(-share // max(settings.micro_batch_tokens // self.row, 1))
            forwards = -(-self.rows // max(4 * settings.micro_batch_tokens // self.row, 1))
            steps = settings.epochs * settings.minibatches
            return Trained(
                shape,
                weights,
                head,
                steps,
                passes,
                -(-share // passes),
                forwards,
                -(-self.rows // forwards),
            )

        actor, critic = self.actor, self.critic
        return trained(critic, critic.critic, 0, self.config.critic), trained(
            actor, actor.policy, actor.table, self.config.actor
        )


@dataclass(frozen=True)
class Memory:
    """Bytes per GPU: the parts, then the peak of each phase, which is a sum of some of them."""

    weights: float
    optimizer: float
    gradients: float
    gathered: float
    activations: float
    activations_other: float
    """With the other setting of gradient checkpointing."""
    logits: float
    cache: float
    slots: int
    """Rows that are sampled at once."""
    loading: float
    sampling: float
    forward: float
    updating: float
    saving: float

    @property
    def peak(self) -> float:
        return max(self.loading, self.sampling, self.forward, self.updating, self.saving)


def memory_of(job: Job) -> Memory:
    shape, number, slices = job.actor, job.bytes, job.slices
    critic, actor = job.roles
    models, trained = critic.weights + 2 * actor.weights, critic.weights + actor.weights
    stored = 4 if job.sliced else number  # a float32 weight is its own master
    weights, optimizer = stored * models / slices, (8 if stored == 4 else 12) * trained / slices
    always = weights + optimizer
    checkpointed = job.config.model.gradient_checkpointing
    updates = [_update(job, role, checkpointed) for role in job.roles]
    others = [_update(job, role, not checkpointed) for role in job.roles]
    updating, gradients, gathered, activations, logits = max(updates)

    # graphs have slots for as many rows as the cache's share of the memory holds; step by step all rows go at once
    cache_row = number * shape.cached * job.row
    fitting = (
        int(job.config.rollout.gpu_memory_utilization * (job.rates.gib * GIB - always) / cache_row)
        - 1
        if job.graphs
        else job.rows
    )
    slots = min(job.rows, fitting) if fitting > 0 else job.rows
    cache = cache_row * (slots + job.graphs)
    whole = number * shape.policy if job.sliced else 0
    draw = (
        slots * shape.vocabulary * (4 if job.graphs else 24)
    )  # logits; step by step their softmax and its float64 sums too
    widest = max(
        number * r.forward_rows * job.row * (3 * r.shape.intermediate + 2 * r.shape.hidden)
        for r in job.roles
    )
    return Memory(
        weights, optimizer, gradients, gathered, activations, max(others)[3], logits, cache, slots,
        loading=weights + (8 * max(r.shape.table for r in job.roles) if job.sliced else 0),  # the largest tensor, and it in slices
        sampling=always + whole + cache + draw,
        forward=always + gathered + widest + logits,
        updating=always + updating,
        saving=always,  # slices are copied to the host a few at a time
    )  # fmt: skip


def _update(
    job: Job, role: Trained, checkpointed: bool
) -> tuple[float, float, float, float, float]:
    """Peak, gradients, what FSDP has gathered, activations, logits."""
    shape, number = role.shape, job.bytes
    kept = shape.layers * shape.hidden + shape.saved if checkpointed else shape.layers * shape.saved
    activations = (
        number * role.pass_rows * job.row * (kept + shape.saved)
    )  # about one layer's worth of gradients
    chunk = (
        min(max(256, LOGITS // shape.vocabulary), role.pass_rows * job.response) * shape.vocabulary
    )
    logits = (
        chunk * (4 + number) + number * role.head if role.head else 0
    )  # the head's own gradient is the first to exist
    if job.sliced:
        during = after = 4 * role.weights / job.slices
        root = role.weights - shape.matrices
        gathered = (
            number * (2 * shape.layer + root) + (number + 4) * shape.layer
        )  # this layer and the next; a gradient and its sum
    else:
        during = 4 * role.weights if role.passes > 1 else 0  # the sum of the passes before
        after, gathered = (6 if number == 2 else 4) * role.weights, 0
    return (
        gathered + max(during + activations + logits, after),
        after,
        gathered,
        activations,
        logits,
    )


@dataclass(frozen=True)
class Network:
    """Bytes that reach a GPU in a step."""

    sampling: float
    gathers: float
    scatters: float
    batch: float


def network_of(job: Job) -> Network:
    copies, number = job.gpus // job.slices, job.bytes
    share = (job.slices - 1) / job.slices
    between = (
        2 * (copies - 1) / copies / job.slices
    )  # the sums of the slices are summed over the copies
    critic, actor = job.roles
    passes = (
        critic.forwards * critic.weights + _policies(job.config) * actor.forwards * actor.weights
    )
    passes += sum(
        r.steps * r.passes * (r.weights + r.shape.matrices) for r in job.roles
    )  # layers again for the backward
    scatters = sum(4 * r.steps * r.passes * r.weights for r in job.roles)
    columns = 8 * 4 * job.row + 4 * 12 * job.response  # of a row: about 4 of integers, 12 of floats
    batch = (
        columns * (2 * job.total + 3 * job.rows) if job.sliced else 0
    )  # an update sends all rows to every worker
    return Network(
        number * share * actor.weights, number * share * passes, (share + between) * scatters, batch
    )


@dataclass(frozen=True)
class Seconds:
    decode: float
    forward: float
    update_critic: float
    update_actor: float
    network: float
    """What forward passes and updates do not hide."""

    @property
    def step(self) -> float:
        return self.decode + self.forward + self.update_critic + self.update_actor + self.network


def seconds_of(job: Job, memory: Memory, network: Network) -> Seconds:
    rate, shape = job.rates.tflops * 1e12, job.actor

    def time(role: Trained, passes: int, rows: int, times: int, head_times: int) -> float:
        """Of passes that cost `times` a forward each: the arithmetic, or the CPU's launches if they take longer."""
        of = role.shape
        layers = 2.0 * of.matrices * job.row + 2.0 * of.layers * of.heads * of.head_dim * job.row**2
        flops = times * layers + head_times * 2.0 * role.head * job.response
        return passes * max(rows * flops / rate, times * of.layers * LAUNCH)

    critic, actor = job.roles
    forward = time(critic, critic.forwards, critic.forward_rows, 1, 1)
    forward += _policies(job.config) * time(actor, actor.forwards, actor.forward_rows, 1, 1)
    times = 4 if job.config.model.gradient_checkpointing else 3
    updates = [
        role.steps * time(role, role.passes, role.pass_rows, times, 3) for role in (critic, actor)
    ]

    cached = job.bytes * memory.slots * shape.cached * (job.prompt + job.response / 2)
    read = job.bytes * (shape.matrices + shape.table) + cached * (
        1 if job.graphs else 3
    )  # step by step the cache is copied, to grow
    step = max(
        read / job.rates.bandwidth / 1e12,
        2.0 * memory.slots * (shape.matrices + shape.table) / rate,
    )
    step = step + shape.layers * GRAPH if job.graphs else max(step, shape.layers * LAUNCH)
    decode = (
        -(-job.rows // memory.slots) * job.response * step
        + 2.0 * job.rows * job.prompt * shape.matrices / rate
    )

    speed = job.rates.network * 1e9
    exposed = (
        max((network.gathers + network.scatters) / speed - forward - sum(updates), 0)
        + (network.sampling + network.batch) / speed
    )
    return Seconds(decode, forward, updates[0], updates[1], exposed)


def _policies(config: Config) -> int:
    """Forward passes for log-probs: the reference's, and π_old's unless the update's own forward is the same."""
    actor = config.actor
    return 1 if actor.old_log_probs == "auto" and actor.epochs == actor.minibatches == 1 else 2


def read_shape(path: str) -> Shape | None:
    """From a model folder's config.json; None if there is no such folder."""
    file = Path(path).expanduser() / "config.json"
    if not file.is_file():
        return None
    config: dict[str, Any] = json.loads(file.read_text("utf-8"))
    config = config.get("text_config", config)
    if any("experts" in key for key in config):
        raise TelescopeError(f"{file} is of a mixture of experts: a plan is for dense models")
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return Shape(
            hidden, config["num_hidden_layers"], heads, config.get("num_key_value_heads") or heads,
            config.get("head_dim") or hidden // heads, config["intermediate_size"], config["vocab_size"],
            config.get("tie_word_embeddings", False),
        )  # fmt: skip
    except KeyError as key:
        raise TelescopeError(
            f"{file} has no {key}: a plan is for Llama-like models; name a shape with --shape instead"
        ) from None


def table(jobs: Sequence[Job]) -> str:
    """A column per number of GPUs."""
    first, gib = jobs[0], jobs[0].rates.gib
    config, rates = first.config, first.rates
    memories, networks = [memory_of(job) for job in jobs], [network_of(job) for job in jobs]
    times = [seconds_of(*of) for of in zip(jobs, memories, networks, strict=True)]
    checkpointing, other = ("on", "off") if config.model.gradient_checkpointing else ("off", "on")
    lines = [
        f"actor {first.actor.policy / 1e9:.2f}B weights, critic {first.critic.critic / 1e9:.2f}B, {config.model.dtype}, "
        f"gradient checkpointing {checkpointing}",
        f"{first.total} rows per step, {first.prompt} prompt + {first.response} response tokens each",
        f"assumed per GPU: {rates.tflops:g} TFLOP/s in training, {rates.bandwidth:g} TB/s of memory, {rates.network:g} GB/s of network\n",
    ]

    def row(name: str, cells: Sequence[str]) -> None:
        lines.append(f"{name:<38}" + "".join(f"{cell:>10}" for cell in cells))

    def part(title: str, of: Sequence[Any], unit: float, form: str, **names: str) -> None:
        lines.append(title)
        for field, name in names.items():
            row(f"  {name}", [f"{getattr(one, field) / unit:{form}}" for one in of])

    row("GPUs", [str(job.gpus) for job in jobs])
    row("backend", ["ray" if job.sliced else "local" for job in jobs])
    row("rows per GPU", [str(job.rows) + "*" * (job.total < job.gpus) for job in jobs])
    part(
        "memory per GPU, GiB", memories, GIB, ".1f",
        weights="weights: actor, critic, reference", optimizer="masters (float32), Adam", gradients="gradients",
        gathered="gathered for a layer (FSDP)", activations="activations of one micro-batch",
        activations_other=f"  with checkpointing {other}", logits="logits chunk, head's gradient", cache="KV cache",
    )  # fmt: skip
    part(
        "peak of each phase, GiB", memories, GIB, ".1f",
        loading="loading", sampling="sampling", forward="forward passes", updating="updating", saving="saving",
    )  # fmt: skip
    row(f"fits in {gib:g} GiB", ["yes" if m.peak <= gib * GIB else "no" for m in memories])
    part(
        "network per GPU and step, GB", networks, 1e9, ".2f",
        sampling="actor gathered whole, to sample", gathers="all-gathers of weights", scatters="sums of gradients",
        batch="the batch",
    )  # fmt: skip
    part(
        "seconds per step", times, 1, ".2f",
        decode="decode", forward="values, log-probs", update_critic="critic update", update_actor="actor update",
        network="network that nothing hides", step="step",
    )  # fmt: skip
    row(
        "response tokens/s",
        [f"{job.total * job.response / t.step:,.0f}" for job, t in zip(jobs, times, strict=True)],
    )
    if any(job.total < job.gpus for job in jobs):
        lines.append("* fewer rows than GPUs: some have none")
    settings = (
        ("rollout.engine = 'vllm'", config.rollout.engine == "vllm"),
        ("rollout.one_step_off_policy", config.rollout.one_step_off_policy),
    )
    settings += tuple(
        (f"ray.{name}", getattr(config.ray, name))
        for name in ("samplers", "critic_workers", "reward_workers")
    )
    unknown = [name for name, given in settings if given]
    if unknown:
        lines.append(f"not in these figures: {', '.join(unknown)}")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus", default="1,8,64,512", help="numbers of GPUs, a column each (default %(default)s)"
    )
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        help="of the model; default: from config.json, if model.path is a folder",
    )
    parser.add_argument(
        "--prompt-tokens", type=int, help="of each prompt; default: data.max_prompt_tokens"
    )
    parser.add_argument(
        "--response-tokens", type=int, help="of each response; default: rollout.max_response_tokens"
    )
    for option, default, text in (
        ("--gpu-gib", Rates.gib, "memory of a GPU"),
        ("--tflops", Rates.tflops, "TFLOP/s per GPU that training reaches"),
        ("--bandwidth", Rates.bandwidth, "TB/s of a GPU's memory, for decoding"),
        ("--network", Rates.network, "GB/s between a GPU and the others"),
    ):
        parser.add_argument(
            option, type=float, default=default, help=f"{text} (default %(default)g)"
        )


def run(
    chosen: argparse.Namespace, recipe: Path | None, overrides: Sequence[tuple[str, str]]
) -> str:
    config = load_config(recipe, overrides)
    if config.model.lora_rank:
        raise TelescopeError(
            "a plan is for training all weights and does not know LoRA yet: --model.lora_rank 0 plans that"
        )
    try:
        gpus = [int(number) for number in chosen.gpus.split(",")]
    except ValueError:
        gpus = []
    prompt = config.data.max_prompt_tokens if chosen.prompt_tokens is None else chosen.prompt_tokens
    response = (
        config.rollout.max_response_tokens
        if chosen.response_tokens is None
        else chosen.response_tokens
    )
    if min(gpus, default=0) <= 0:
        raise TelescopeError(f"--gpus {chosen.gpus}: give positive numbers, such as --gpus 1,8,64")
    given = {name: getattr(chosen, name) for name in ("tflops", "bandwidth", "network", "gpu_gib")}
    for name, number in (given | {"prompt_tokens": prompt, "response_tokens": response}).items():
        if not 0 < number < math.inf:
            raise TelescopeError(f"--{name.replace('_', '-')} {number:g}: give a positive number")
    path = config.model.path
    known = SHAPES.get(chosen.shape or ("135M" if path == "smollm2" else ""))
    actor = known or read_shape(path)
    if actor is None:
        raise TelescopeError(
            f"model.path = {path!r} is no folder with a config.json: name a shape, --shape {'|'.join(SHAPES)}"
        )
    critic = (
        read_shape(config.model.critic_path)
        if config.model.critic_path
        else None
        if config.credit.by_critic
        else NONE
    )
    rates = Rates(chosen.tflops, chosen.bandwidth, chosen.network, chosen.gpu_gib)
    return table(
        [Job(config, number, actor, critic or actor, prompt, response, rates) for number in gpus]
    )
