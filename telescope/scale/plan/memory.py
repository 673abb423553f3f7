"""Bytes per GPU: of one that trains, and of those that only sample, train the critic, or score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from telescope.scale.plan.job import Job, Trained
from telescope.scale.plan.sampling import Sampling, is_vllm, sampling_of
from telescope.scale.plan.shapes import Shape

MAX_LOGITS = 2**26  # as in models/fast/packed.py, which imports torch
STEP_PART = 2**26  # as in roles/learner.py, which imports torch
MAX_WORK = 5e12  # as in models/fast/capture.py, which imports torch
MOMENTS_8BIT = 2 * (1 + 4 / 256)
"""Bytes of a weight's two moments in 8 bits; bitsandbytes has a scale per 256."""

NO_SAMPLING = Sampling(0, 0, 0, 0, 0, 1)


@dataclass(frozen=True)
class Memory:
    """Bytes per GPU: the parts, then the peak of each phase, which is a sum of some parts."""

    weights: float = 0
    reward: float = 0
    """The reward model's weights."""
    optimizer: float = 0
    gradients: float = 0
    gathered: float = 0
    activations: float = 0
    activations_other: float = 0
    """With the other setting of gradient checkpointing."""
    logits: float = 0
    unpacked: float = 0
    """A quantised matrix while it is used."""
    graphs: float = 0
    """What CUDA graphs of updates keep. They are captured only into memory that is free."""
    sampling_weights: float = 0
    """A copy of the policy, or its gathered weights."""
    cache: float = 0
    vllm: float = 0
    """What vLLM needs besides weights and cache."""
    host: float = 0
    """What is kept in host memory instead."""
    slots: int = 1
    """Rows that are sampled at once."""
    loading: float = 0
    sampling: float = 0
    scoring: float = 0
    forward: float = 0
    updating: float = 0
    sending: float = 0
    """While weights go to the samplers."""
    saving: float = 0

    @property
    def peak(self) -> float:
        trained = max(self.forward, self.updating, self.sending, self.saving)
        return max(self.loading, self.sampling, self.scoring, trained)

    def without_graphs(self) -> Memory:
        """The same with no updates captured: graphs take only memory that is free."""
        phases = ("sampling", "scoring", "forward", "updating", "sending", "saving")
        less = {phase: max(getattr(self, phase) - self.graphs, 0.0) for phase in phases}
        return replace(self, graphs=0.0, **less)


def memories(job: Job) -> dict[str, Memory]:
    """The memory of each kind of GPU, by what it does."""
    found = {"trains": memory_of(job)}
    ray = job.config.ray
    if job.is_sharded and ray.critic_workers:
        found["trains the critic"] = _training(job, job.roles[:1], with_actor=False)
    if job.samples_apart:
        found["samples"] = _sampler(job)
    if job.is_sharded and ray.reward_workers and job.reward is not None:
        found["scores"] = _scorer(job, job.reward)
    return found


def memory_of(job: Job) -> Memory:
    """The memory of a GPU that trains the actor."""
    return _training(job, job.roles_with_actor, with_actor=True)


def _training(job: Job, roles: Sequence[Trained], *, with_actor: bool) -> Memory:
    """The memory of a GPU that trains these roles; with the actor is the reference."""
    reference = _reference(job) if with_actor else 0
    offloaded_reference = reference if job.config.model.offload_reference else 0
    reward = None if job.is_sharded else job.reward  # on Ray the controller's CPU has it
    scorer = 4.0 * reward.critic if reward else 0
    weights = sum(_weights(job, role) for role in roles) + reference - offloaded_reference
    offloaded = sum(_state(job, role) for role in roles if role.settings.offload_optimizer)
    optimizer = sum(_state(job, role) for role in roles) - offloaded
    held = weights + scorer + optimizer

    checkpointed = job.config.model.gradient_checkpointing
    updates = [_update(job, role, checkpointed) for role in roles]
    update = max(updates)
    other = max(_update(job, role, not checkpointed) for role in roles)

    masters = sum(4 * role.trained / role.shards for role in roles if job.stored != 4)
    sampling = NO_SAMPLING
    samples = with_actor and not job.samples_apart
    if samples:
        sampling = sampling_of(job, held, weights + scorer + masters)
    always = held + sampling.kept
    forward = (
        always
        + offloaded_reference
        + update.gathered
        + max(_widest_layer(job, role) for role in roles)
        + update.logits
        + job.unpacked
    )
    graphs = _kept_by_graphs(job, roles, updates, always, max(forward, always + update.peak))
    always += graphs
    sends = with_actor and job.is_sharded and (job.samples_apart or is_vllm(job))
    largest = max(role.shape.largest for role in roles)
    return Memory(
        weights=weights,
        reward=scorer,
        optimizer=optimizer,
        gradients=update.gradients,
        gathered=update.gathered,
        activations=update.activations,
        activations_other=other.activations,
        logits=update.logits,
        unpacked=job.unpacked,
        graphs=graphs,
        sampling_weights=sampling.weights,
        cache=sampling.cache,
        vllm=sampling.besides if is_vllm(job) else 0,
        host=offloaded + offloaded_reference + (sampling.weights if is_vllm(job) else 0),
        slots=sampling.slots,
        # Rows of the largest tensor as they are read. An offloaded reference is made on the GPU.
        loading=weights
        + scorer
        + offloaded_reference
        + job.unpacked
        + (4 * largest / max(role.shards for role in roles) if job.is_sharded else 0),
        sampling=held + graphs + sampling.total + job.unpacked if samples else 0,
        scoring=always + _scoring(job, reward) if reward else 0,
        forward=forward + graphs,
        updating=always + update.peak,
        # The largest weight, gathered; beside a vLLM it is gathered as it is stored.
        sending=always + (job.bytes if job.samples_apart else job.stored) * largest if sends else 0,
        saving=always,  # shards are copied to the host a few at a time
    )


def _sampler(job: Job) -> Memory:
    """A GPU that only samples."""
    sampling = sampling_of(job, 0, 0)
    weights = sampling.weights
    kept = sampling.kept
    received = job.bytes * job.actor.largest  # one weight at a time, before it is copied
    return Memory(
        sampling_weights=weights,
        cache=sampling.cache,
        vllm=sampling.besides if is_vllm(job) else 0,
        slots=sampling.slots,
        loading=weights + received,
        sampling=sampling.total,
        # vLLM keeps its cache meanwhile; ours is freed.
        sending=weights + kept + received + (sampling.cache if is_vllm(job) else 0),
    )


def _scorer(job: Job, shape: Shape) -> Memory:
    """A GPU that only scores: a reward model is whole, in float32."""
    weights = 4.0 * shape.critic
    return Memory(reward=weights, loading=weights, scoring=weights + _scoring(job, shape))


def _scoring(job: Job, shape: Shape) -> float:
    """Bytes in a layer of the reward model's forward."""
    tokens = max(job.config.reward.micro_batch_tokens, job.row)
    return 4 * tokens * (3 * shape.intermediate + 2 * shape.hidden)


# ---- what is always there


def _frozen(job: Job, weights: int, matrices: int) -> float:
    """Bytes of a model's frozen weights: matrices may be quantised, tables are not."""
    matrix = job.quantized or job.bytes
    return matrix * matrices + job.bytes * (weights - matrices)


def _weights(job: Job, role: Trained) -> float:
    """Bytes of a role's weights; those that the critic shares are the actor's."""
    trained = job.stored * role.trained / role.shards
    is_critic = role.head == 0
    if not job.lora or (is_critic and job.shared_base):
        return trained
    return trained + _frozen(job, role.weights, role.shape.matrices) / role.shards


def _reference(job: Job) -> float:
    """Bytes of the reference's own weights: none if it is the actor without its adapters."""
    model = job.config.model
    shards = job.roles[1].shards
    if not job.lora:
        return job.stored * job.actor.policy / shards
    if model.reference_path is None:
        return 0
    return _frozen(job, job.actor.policy, job.actor.matrices) / shards


def _state_bytes(job: Job, role: Trained) -> float:
    """Bytes of a trained weight's master and moments. A float32 weight is its own master."""
    moments = 8 if role.settings.optimizer == "adamw" else MOMENTS_8BIT
    return moments + (0 if job.stored == 4 else 4)


def _state(job: Job, role: Trained) -> float:
    """Bytes of a role's masters and moments."""
    return _state_bytes(job, role) * role.trained / role.shards


# ---- passes


def tokens_here(job: Job, rows: int) -> float:
    """Tokens of this GPU in a pass of `rows` rows, which some GPUs may share."""
    return rows * job.row / job.sequence_parallel


def _widest_layer(job: Job, role: Trained) -> float:
    """Bytes in a layer of a forward without a gradient."""
    per_token = 3 * role.shape.intermediate + 2 * role.shape.hidden
    return job.bytes * tokens_here(job, role.forward_rows) * per_token


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
    activations = number * tokens_here(job, role.pass_rows) * (kept + shape.saved)
    if job.lora:  # adapters are float32
        work = shape.adapter_work(job.config.model.lora_targets)
        activations += 4 * tokens_here(job, role.pass_rows) * work

    logits = 0.0
    if role.head:
        chunk = max(256, logits_at_once(int(job.rates.memory)) // shape.vocabulary)
        tokens = min(chunk, role.pass_rows * job.response / job.sequence_parallel)
        logits = tokens * shape.vocabulary * (4 + number)
        if not job.lora:
            logits += number * role.head  # the head's own gradient, which is the first to exist

    gathered = 0.0
    if job.is_sharded:
        during = after = 4 * role.trained / role.shards
        root = role.weights - shape.matrices
        # This layer and the next; a layer's gradient and its sum.
        gathered = number * (2 * shape.layer + root) + (number + 4) * shape.layer
    else:
        during = 4 * role.trained if role.passes > 1 else 0  # the sum of the passes before
        after = (6 if number == 2 else 4) * role.trained
    step = 0.0
    if role.settings.offload_optimizer:
        largest = 0 if job.lora else shape.table
        step = _state_bytes(job, role) * min(max(STEP_PART, largest), role.trained)
    peak = gathered + max(during + activations + logits + job.unpacked, after + step)
    return _Update(peak, after, gathered, activations, logits)


# ---- CUDA graphs of updates


def is_captured(job: Job, role: Trained) -> bool:
    """Whether the role's updates may be CUDA graphs: as models/load.py and fast/capture.py say."""
    model = job.config.model
    if job.is_sharded or not model.cuda_graphs or model.dtype != "bfloat16":
        return False
    if model.lora_rank or model.compile or model.gradient_checkpointing:
        return False
    return 0 < role.shape.critic * role.pass_rows * job.row <= MAX_WORK


def _kept_by_graphs(
    job: Job, roles: Sequence[Trained], updates: Sequence[_Update], always: float, peak: float
) -> float:
    """Bytes that the graphs of all roles keep: they work in the same memory.

    None are captured unless twice as much is free as a step takes at its peak.
    """
    captured = [
        (role, update)
        for role, update in zip(roles, updates, strict=True)
        if is_captured(job, role)
    ]
    if not captured or job.rates.memory - always < 2 * (peak - always):
        return 0
    own_gradients = sum(job.bytes * role.shape.matrices for role, _ in captured)
    return own_gradients + max(update.activations for _, update in captured)
