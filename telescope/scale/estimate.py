"""What a recipe takes on some number of GPUs, by arithmetic: memory, network, time.

One GPU is the backend `local`. More are the backend `ray`: every model is sharded (FSDP2) over all
GPUs, or over `ray.fsdp_size` of them, and every role is on all of them. Sizes of weights,
optimizer state, gradients and cache follow from the model's shape, without norms and biases.
Activations, FSDP's buffers and all times are estimates; docs/scale.md has their errors. With LoRA,
quantised weights and offloading, memory follows from the same sizes and was not measured. For dense
decoders with gated units. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from telescope.config import Config, OptimizerConfig

GIB = 2**30
MAX_LOGITS = 2**26  # as in models/fast/packed.py, which imports torch
LAUNCH = 0.9e-3
"""Seconds of a CPU to launch a layer's forward; a backward is two.

Measured: 135M, 5 micro-batches took 414 ms.
"""
GRAPH = 50e-6
"""Seconds of a layer in a decode graph besides reading weights and cache.

Measured: 46 µs at 135M, 57 µs at 1.5B.
"""

QUANTIZED = {"nf4": 0.5 + 4 / 64, "int8": 1 + 4 / 64}
"""Bytes of a quantised weight, its share of a scale included."""
MOMENTS_8BIT = 2 * (1 + 4 / 256)
"""Bytes of a weight's two moments in 8 bits; bitsandbytes has a scale per 256."""
STEP_PART = 2**26  # as in roles/learner.py, which imports torch


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# ---- the model


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense decoder."""

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
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def matrices(self) -> int:
        """Weights of all layers."""
        return self.layers * self.layer

    @property
    def table(self) -> int:
        """Weights of the embeddings. The output layer has as many, or shares them."""
        return self.hidden * self.vocabulary

    @property
    def policy(self) -> int:
        """Weights of a policy of this shape."""
        return self.matrices + self.table * (1 if self.tied else 2)

    @property
    def critic(self) -> int:
        """Weights of a critic of this shape; its head is too small to count."""
        return self.matrices + self.table

    def adapters(self, rank: int, targets: Sequence[str] = ()) -> int:
        """Weights of LoRA adapters of all layers, or of those named."""
        query = self.heads * self.head_dim
        key = self.kv_heads * self.head_dim
        sizes = {
            "q_proj": self.hidden + query,
            "k_proj": self.hidden + key,
            "v_proj": self.hidden + key,
            "o_proj": query + self.hidden,
            "gate_proj": self.hidden + self.intermediate,
            "up_proj": self.hidden + self.intermediate,
            "down_proj": self.intermediate + self.hidden,
        }
        names = {target.rpartition(".")[2] for target in targets} or sizes.keys()
        return self.layers * rank * sum(sizes[name] for name in sizes if name in names)

    @property
    def saved(self) -> int:
        """Numbers per token that a layer keeps for its gradient.

        2 residuals and 2 norms; q, k, v, q and k rotated, the attention's output; gate, up and
        their product.
        """
        attention = 3 * self.head_dim * (self.heads + self.kv_heads)
        return 4 * self.hidden + attention + 3 * self.intermediate

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

NO_CRITIC = Shape(0, 0, 0, 0, 0, 0, 1, True)
"""A critic whose values are zeros."""


# ---- the job


@dataclass(frozen=True)
class Rates:
    """What a GPU has, and is assumed to reach."""

    tflops: float = 400.0
    bandwidth: float = 4.0
    """TB/s of its memory."""
    network: float = 50.0
    """GB/s between it and the others."""
    gib: float = 80.0


@dataclass(frozen=True)
class Trained:
    """Actor or critic, and how the rows of one GPU go through it."""

    shape: Shape
    weights: int
    """Without adapters."""
    trained: int
    """All weights, or those of the adapters."""
    head: int
    """Weights of the output layer; 0 for the critic."""
    settings: OptimizerConfig
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
    """A recipe on some number of GPUs."""

    config: Config
    gpus: int
    actor: Shape
    critic: Shape
    prompt: int
    """Tokens of each prompt."""
    response: int
    """Tokens of each response."""
    rates: Rates = Rates()

    @property
    def total(self) -> int:
        """Responses per step."""
        return self.config.rollout.batch_size * self.config.rollout.n

    @property
    def rows(self) -> int:
        """Responses of the GPU that has most."""
        return ceil_div(self.total, self.gpus)

    @property
    def row(self) -> int:
        """Tokens of a row."""
        return self.prompt + self.response

    @property
    def is_sharded(self) -> bool:
        return self.gpus > 1

    @property
    def shards(self) -> int:
        """GPUs that share one copy of the models."""
        return min(self.config.ray.fsdp_size or self.gpus, self.gpus)

    @property
    def bytes(self) -> int:
        """Bytes of a number in a forward."""
        return 2 if self.config.model.dtype == "bfloat16" else 4

    @property
    def lora(self) -> bool:
        return self.config.model.lora_rank > 0

    @property
    def stored(self) -> int:
        """Bytes of a trained weight: shards are float32."""
        return 4 if self.is_sharded else self.bytes

    @property
    def shared_base(self) -> bool:
        """Whether the critic uses the actor's frozen weights."""
        model = self.config.model
        return self.lora and not self.is_sharded and not model.critic_path and not model.compile

    @property
    def quantized(self) -> float | None:
        """Bytes of a quantised weight; None: weights are not quantised."""
        return QUANTIZED.get(self.config.model.quantize)

    @property
    def unpacked(self) -> int:
        """Bytes of the largest quantised matrix while it is used."""
        widest = max(shape.hidden * shape.intermediate for shape in (self.actor, self.critic))
        return self.bytes * widest if self.quantized else 0

    @property
    def graphs(self) -> bool:
        """Whether sampling uses CUDA graphs."""
        return self.config.rollout.cuda_graphs and not self.is_sharded

    @property
    def roles(self) -> tuple[Trained, Trained]:
        """(critic, actor): the order of their updates."""
        critic = self._trained(self.critic, self.critic.critic, 0, self.config.critic)
        actor = self._trained(self.actor, self.actor.policy, self.actor.table, self.config.actor)
        return critic, actor

    def _trained(self, shape: Shape, weights: int, head: int, settings: OptimizerConfig) -> Trained:
        tokens = settings.micro_batch_tokens
        share = ceil_div(self.total, settings.minibatches * self.gpus)
        passes = ceil_div(share, max(tokens // self.row, 1))
        forwards = ceil_div(self.rows, max(4 * tokens // self.row, 1))
        model = self.config.model
        return Trained(
            shape=shape,
            weights=weights,
            trained=shape.adapters(model.lora_rank, model.lora_targets) if self.lora else weights,
            head=head,
            settings=settings,
            steps=settings.epochs * settings.minibatches,
            passes=passes,
            pass_rows=ceil_div(share, passes),
            forwards=forwards,
            forward_rows=ceil_div(self.rows, forwards),
        )


def _policy_forwards(config: Config) -> int:
    """Forwards for log-probs: the reference's, and π_old's unless another forward gives it."""
    actor = config.actor
    same = actor.old_log_probs == "auto" and actor.epochs == actor.minibatches == 1
    return 1 if same or actor.old_log_probs == "sampler" else 2


# ---- memory


@dataclass(frozen=True)
class Memory:
    """Bytes per GPU: the parts, then the peak of each phase, which is a sum of some parts."""

    weights: float
    optimizer: float
    gradients: float
    gathered: float
    activations: float
    activations_other: float
    """With the other setting of gradient checkpointing."""
    logits: float
    unpacked: float
    """A quantised matrix while it is used."""
    cache: float
    host: float
    """What is kept in host memory instead."""
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
    """The memory of each GPU."""
    reference = _reference(job)
    offloaded_reference = reference if job.config.model.offload_reference else 0
    weights = sum(_weights(job, role) for role in job.roles) + reference - offloaded_reference
    offloaded = sum(_state(job, role) for role in job.roles if role.settings.offload_optimizer)
    optimizer = sum(_state(job, role) for role in job.roles) - offloaded
    always = weights + optimizer

    checkpointed = job.config.model.gradient_checkpointing
    update = max(_update(job, role, checkpointed) for role in job.roles)
    other = max(_update(job, role, not checkpointed) for role in job.roles)

    slots = _slots(job, always)
    cache = _cache_row(job) * (slots + job.graphs)
    # Logits; without graphs also their softmax and its float64 sums.
    draw = slots * job.actor.vocabulary * (4 if job.graphs else 24)
    gathered_actor = job.bytes * job.actor.policy if job.is_sharded else 0
    largest_table = max(role.shape.table for role in job.roles)
    return Memory(
        weights=weights,
        optimizer=optimizer,
        gradients=update.gradients,
        gathered=update.gathered,
        activations=update.activations,
        activations_other=other.activations,
        logits=update.logits,
        unpacked=job.unpacked,
        cache=cache,
        host=offloaded + offloaded_reference,
        slots=slots,
        # The largest tensor, in full and sharded. An offloaded reference is made on the GPU.
        loading=weights
        + offloaded_reference
        + job.unpacked
        + (8 * largest_table if job.is_sharded else 0),
        sampling=always + gathered_actor + cache + draw + job.unpacked,
        forward=always
        + offloaded_reference
        + update.gathered
        + _widest_layer(job)
        + update.logits
        + job.unpacked,
        updating=always + update.peak,
        saving=always,  # shards are copied to the host a few at a time
    )


def _frozen(job: Job, weights: int, matrices: int) -> float:
    """Bytes of a model's frozen weights on a GPU: matrices may be quantised, tables are not."""
    matrix = job.quantized or job.bytes
    return (matrix * matrices + job.bytes * (weights - matrices)) / job.shards


def _weights(job: Job, role: Trained) -> float:
    """Bytes of a role's weights; those that the critic shares are the actor's."""
    trained = job.stored * role.trained / job.shards
    is_critic = role.head == 0
    if not job.lora or (is_critic and job.shared_base):
        return trained
    return trained + _frozen(job, role.weights, role.shape.matrices)


def _reference(job: Job) -> float:
    """Bytes of the reference's own weights: none if it is the actor without its adapters."""
    model = job.config.model
    if not job.lora:
        return job.stored * job.actor.policy / job.shards
    return _frozen(job, job.actor.policy, job.actor.matrices) if model.reference_path else 0


def _state_bytes(job: Job, role: Trained) -> float:
    """Bytes of a trained weight's master and moments. A float32 weight is its own master."""
    moments = 8 if role.settings.optimizer == "adamw" else MOMENTS_8BIT
    return moments + (0 if job.stored == 4 else 4)


def _state(job: Job, role: Trained) -> float:
    """Bytes of a role's masters and moments."""
    return _state_bytes(job, role) * role.trained / job.shards


def _cache_row(job: Job) -> int:
    """Bytes of a row in the KV cache."""
    return job.bytes * job.actor.cached * job.row


def _slots(job: Job, always: float) -> int:
    """Rows that are sampled at once.

    Graphs have as many slots as the cache's share of the memory holds; without them, all rows.
    """
    if not job.graphs:
        return job.rows
    share = job.config.rollout.gpu_memory_utilization * (job.rates.gib * GIB - always)
    fitting = int(share / _cache_row(job)) - 1
    return min(job.rows, fitting) if fitting > 0 else job.rows


def _widest_layer(job: Job) -> int:
    """Bytes in a layer of the largest forward without a gradient."""
    widest = 0
    for role in job.roles:
        per_token = 3 * role.shape.intermediate + 2 * role.shape.hidden
        widest = max(widest, job.bytes * role.forward_rows * job.row * per_token)
    return widest


class _Update(NamedTuple):
    """Bytes of an update. `peak` comes first, so that `max()` picks the update with the highest."""

    peak: float
    gradients: float
    gathered: float
    """What FSDP has gathered."""
    activations: float
    logits: float


def logits_at_once(memory: int) -> int:
    """As in models/fast/packed.py, which imports torch."""
    return max(MAX_LOGITS, memory // (128 * 4))


def _update(job: Job, role: Trained, checkpointed: bool) -> _Update:
    shape = role.shape
    number = job.bytes
    kept = shape.layers * shape.saved
    if checkpointed:
        kept = shape.layers * shape.hidden + shape.saved
    # The gradients of about one layer's activations exist at once.
    activations = number * role.pass_rows * job.row * (kept + shape.saved)

    logits = 0
    if role.head:
        chunk = max(256, logits_at_once(int(job.rates.gib * GIB)) // shape.vocabulary)
        tokens = min(chunk, role.pass_rows * job.response)
        logits = tokens * shape.vocabulary * (4 + number)
        if not job.lora:
            logits += number * role.head  # the head's own gradient, which is the first to exist

    if job.is_sharded:
        during = after = 4 * role.trained / job.shards
        root = role.weights - shape.matrices
        # This layer and the next; a layer's gradient and its sum.
        gathered = number * (2 * shape.layer + root) + (number + 4) * shape.layer
    else:
        during = 4 * role.trained if role.passes > 1 else 0  # the sum of the passes before
        after = (6 if number == 2 else 4) * role.trained
        gathered = 0
    step = 0.0
    if role.settings.offload_optimizer:
        largest = 0 if job.lora else shape.table
        step = _state_bytes(job, role) * min(max(STEP_PART, largest), role.trained)
    peak = gathered + max(during + activations + logits + job.unpacked, after + step)
    return _Update(peak, after, gathered, activations, logits)


# ---- network


@dataclass(frozen=True)
class Network:
    """Bytes that reach a GPU in a step."""

    sampling: float
    gathers: float
    scatters: float
    batch: float


def network_of(job: Job) -> Network:
    """What each GPU receives in a step."""
    critic, actor = job.roles
    copies = job.gpus // job.shards
    share = (job.shards - 1) / job.shards
    # The sums of the shards are summed over the copies.
    between_copies = 2 * (copies - 1) / copies / job.shards

    gathered = critic.forwards * critic.weights
    gathered += _policy_forwards(job.config) * actor.forwards * actor.weights
    scattered = 0
    for role in job.roles:
        passes = role.steps * role.passes
        gathered += passes * (role.weights + role.shape.matrices)  # layers again for the backward
        scattered += 4 * passes * role.trained

    batch = 0
    if job.is_sharded:
        # Bytes of a row: about 4 columns of integers, 12 of floats.
        columns = 8 * 4 * job.row + 4 * 12 * job.response
        batch = columns * (2 * job.total + 3 * job.rows)  # an update sends all rows to every worker
    return Network(
        sampling=job.bytes * share * actor.weights,
        gathers=job.bytes * share * gathered,
        scatters=(share + between_copies) * scattered,
        batch=batch,
    )


# ---- time


@dataclass(frozen=True)
class Seconds:
    """Seconds of a step, by phase."""

    decode: float
    forward: float
    update_critic: float
    update_actor: float
    network: float
    """Exposed communication: what does not overlap with forward passes and updates."""

    @property
    def step(self) -> float:
        return self.decode + self.forward + self.update_critic + self.update_actor + self.network


def seconds_of(job: Job, memory: Memory, network: Network) -> Seconds:
    """The time of a step."""
    critic, actor = job.roles
    forward = critic.forwards * _pass_seconds(job, critic, critic.forward_rows, 1, 1)
    actor_forward = actor.forwards * _pass_seconds(job, actor, actor.forward_rows, 1, 1)
    forward += _policy_forwards(job.config) * actor_forward

    # Forwards per update: a gradient of frozen weights is not computed.
    cost = 2 if job.lora else 3
    if job.config.model.gradient_checkpointing:
        cost += 1
    update_critic, update_actor = (
        role.steps * (role.passes * _pass_seconds(job, role, role.pass_rows, cost, 3))
        for role in (critic, actor)
    )

    speed = job.rates.network * 1e9
    overlapping = (network.gathers + network.scatters) / speed
    exposed = max(overlapping - forward - (update_critic + update_actor), 0)
    exposed += (network.sampling + network.batch) / speed
    decode = _decode_seconds(job, memory.slots)
    return Seconds(decode, forward, update_critic, update_actor, exposed)


def _pass_seconds(job: Job, role: Trained, rows: int, cost: int, head_cost: int) -> float:
    """A pass over `rows` rows that costs `cost` forwards: arithmetic, or launches if longer."""
    shape = role.shape
    matrices = 2.0 * shape.matrices * job.row
    attention = 2.0 * shape.layers * shape.heads * shape.head_dim * job.row**2
    head = 2.0 * role.head * job.response
    flops = cost * (matrices + attention) + head_cost * head
    unpacking = cost * _unpacking_seconds(job, shape)
    arithmetic = rows * flops / (job.rates.tflops * 1e12)
    return max(arithmetic + unpacking, cost * shape.layers * LAUNCH)


def _unpacking_seconds(job: Job, shape: Shape) -> float:
    """Reading all quantised weights of a model, and writing them whole."""
    if not job.quantized:
        return 0.0
    return (job.quantized + job.bytes) * shape.matrices / job.rates.bandwidth / 1e12


def _decode_seconds(job: Job, slots: int) -> float:
    shape = job.actor
    rate = job.rates.tflops * 1e12
    weights = shape.matrices + shape.table
    cached = job.bytes * slots * shape.cached * (job.prompt + job.response / 2)
    # Without graphs the cache is copied, to grow.
    read = job.bytes * weights + cached * (1 if job.graphs else 3)
    token = max(read / job.rates.bandwidth / 1e12, 2.0 * slots * weights / rate)
    token += _unpacking_seconds(job, shape)
    if job.graphs:
        token += shape.layers * GRAPH
    else:
        token = max(token, shape.layers * LAUNCH)
    prefill = 2.0 * job.rows * job.prompt * shape.matrices / rate
    return ceil_div(job.rows, slots) * job.response * token + prefill
