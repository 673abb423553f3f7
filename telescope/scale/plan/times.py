"""Bytes over the network, and seconds of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from telescope.config import Config
from telescope.scale.plan.job import Job, Trained
from telescope.scale.plan.memory import is_captured, memory_of
from telescope.scale.plan.sampling import (
    ADAPTERS_LAUNCH,
    LAUNCH,
    decode_seconds,
    is_vllm,
    sampling_of,
    unpacking_seconds,
)
from telescope.scale.plan.shapes import Shape, ceil_div

FLOAT32 = 0.1
"""What a reward model, which is float32, reaches of the rate of bfloat16. Assumed."""

# ---- network


@dataclass(frozen=True)
class Network:
    """Bytes that reach a GPU in a step."""

    sampling: float = 0
    gathers: float = 0
    scatters: float = 0
    batch: float = 0


def networks(job: Job) -> dict[str, Network]:
    """What each kind of GPU receives in a step."""
    found = {"trains": _training(job, job.roles_with_actor)}
    if job.is_sharded and job.config.ray.critic_workers:
        found["trains the critic"] = _training(job, job.roles[:1])
    if job.samples_apart:
        # Each GPU of a sampler receives every weight whole, and keeps its part.
        found["samples"] = Network(sampling=job.bytes * job.actor.policy)
    return found


def _training(job: Job, roles: Sequence[Trained]) -> Network:
    sampling = gathers = scatters = 0.0
    for role in roles:
        share = (role.shards - 1) / role.shards
        copies = role.gpus // role.shards
        # The sums of the shards are summed over the copies.
        between_copies = 2 * (copies - 1) / copies / role.shards
        passes = role.steps * role.passes
        forwards = role.forwards * (_policy_forwards(job.config) if role.head else 1)
        gathered = forwards * role.weights
        gathered += passes * (role.weights + role.shape.matrices)  # layers again for the backward
        gathers += job.bytes * share * gathered
        scatters += (share + between_copies) * 4 * passes * role.trained
        if role.head:
            sampling = share * _gathered_to_sample(job, role)
    batch = 0
    if job.is_sharded:
        # Bytes of a row: about 4 columns of integers, 12 of floats.
        columns = 8 * 4 * job.row + 4 * 12 * job.response
        rows = max(role.rows for role in roles)
        # An update sends all rows to every worker.
        batch = columns * (len(roles) * job.total + (len(roles) + 1) * rows)
    return Network(sampling, gathers, scatters, batch)


def _gathered_to_sample(job: Job, actor: Trained) -> float:
    """Bytes of the policy: as it is computed with, or as it is stored for a vLLM beside it."""
    if job.lora:
        return job.bytes * actor.weights + job.stored * actor.trained
    beside = is_vllm(job) and not job.samples_apart
    return (job.stored if beside else job.bytes) * actor.weights


def _policy_forwards(config: Config) -> int:
    """Forwards for log-probs: the reference's, and π_old's unless another forward gives it."""
    actor = config.actor
    same = actor.old_log_probs == "auto" and actor.epochs == actor.minibatches == 1
    return 1 if same or actor.old_log_probs == "sampler" else 2


# ---- time


@dataclass(frozen=True)
class Seconds:
    """Seconds of a step, by phase."""

    decode: float
    score: float
    forward: float
    update_critic: float
    update_actor: float
    network: float
    """Exposed communication: what does not overlap with forward passes and updates."""
    is_ahead: bool = False
    """Whether the next step is sampled while this one trains."""

    @property
    def step(self) -> float:
        training = self.score + self.forward + self.update_critic + self.update_actor
        both = max(self.decode, training) if self.is_ahead else self.decode + training
        return both + self.network


def seconds_of(job: Job) -> Seconds:
    """The time of a step."""
    critic, actor = job.roles
    critic_forward = critic.forwards * _pass_seconds(job, critic, critic.forward_rows, 1, 1)
    actor_forward = actor.forwards * _pass_seconds(job, actor, actor.forward_rows, 1, 1)
    actor_forward *= _policy_forwards(job.config)

    # Forwards per update: a gradient of frozen weights is not computed.
    cost = 2 if job.lora else 3
    if job.config.model.gradient_checkpointing:
        cost += 1
    update_critic, update_actor = (
        role.steps * (role.passes * _pass_seconds(job, role, role.pass_rows, cost, 3))
        for role in (critic, actor)
    )

    speed = job.rates.network * 1e9
    groups = networks(job)
    own = {"trains": actor_forward + update_actor, "trains the critic": 0.0}
    own["trains the critic" if "trains the critic" in groups else "trains"] += (
        critic_forward + update_critic
    )
    exposed = 0.0
    for name, group in groups.items():
        overlapping = (group.gathers + group.scatters) / speed
        exposed += max(overlapping - own.get(name, 0.0), 0)
        exposed += (group.sampling + group.batch) / speed
    return Seconds(
        decode=decode_seconds(job, _slots(job)),
        score=_scoring_seconds(job),
        forward=critic_forward + actor_forward,
        update_critic=update_critic,
        update_actor=update_actor,
        network=exposed,
        is_ahead=job.samples_apart and job.config.rollout.one_step_off_policy,
    )


def _slots(job: Job) -> int:
    return sampling_of(job, 0, 0).slots if job.samples_apart else memory_of(job).slots


def _pass_seconds(job: Job, role: Trained, rows: int, cost: int, head_cost: int) -> float:
    """A pass over `rows` rows that costs `cost` forwards: arithmetic, or launches if longer."""
    shape = role.shape
    forward = _forward_flops(shape, job.row, role.trained if job.lora else 0)
    head = 2.0 * role.head * job.response
    flops = cost * forward + head_cost * head
    unpacking = cost * unpacking_seconds(job, shape)
    arithmetic = rows * flops / job.sequence_parallel / (job.rates.tflops * 1e12)
    launch = LAUNCH + (ADAPTERS_LAUNCH if job.lora else 0)
    if cost > 1 and is_captured(job, role):
        launch = 0.0
    return max(arithmetic + unpacking, cost * shape.layers * launch)


def _scoring_seconds(job: Job) -> float:
    """The reward model's forward on GPUs."""
    if job.reward is None:
        return 0.0
    gpus = job.config.ray.reward_workers if job.is_sharded else 1
    if not gpus:
        return 0.0
    rows = ceil_div(job.total, gpus)
    return rows * _forward_flops(job.reward, job.row) / (job.rates.tflops * 1e12 * FLOAT32)


def _forward_flops(shape: Shape, tokens: int, adapters: int = 0) -> float:
    """A row's forward through all layers."""
    matrices = 2.0 * (shape.matrices + adapters) * tokens
    attention = 2.0 * shape.layers * shape.heads * shape.head_dim * tokens**2
    return matrices + attention
