"""A recipe on some number of GPUs: which GPU does what, and in how many passes."""

from __future__ import annotations

from dataclasses import dataclass

from telescope.config import Config, OptimizerConfig
from telescope.scale.plan.shapes import Shape, ceil_div

QUANTIZED = {"nf4": 0.5 + 4 / 64, "int8": 1 + 4 / 64}
"""Bytes of a quantised weight, its share of a scale included."""


@dataclass(frozen=True)
class Rates:
    """What a GPU has, and is assumed to reach."""

    tflops: float = 400.0
    bandwidth: float = 4.0
    """TB/s of its memory."""
    network: float = 50.0
    """GB/s between it and the others."""
    gib: float = 80.0

    @property
    def memory(self) -> float:
        """Bytes of its memory."""
        return self.gib * 2**30


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
    gpus: int
    """That hold it."""
    shards: int
    """GPUs that share one copy of it."""
    rows: int
    """Responses of the GPU that has most."""
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
    """In all: those that train, and those that only sample, train the critic, or score."""
    actor: Shape
    critic: Shape
    prompt: int
    """Tokens of each prompt."""
    response: int
    """Tokens of each response."""
    rates: Rates = Rates()
    reward: Shape | None = None
    """The reward model that GPUs hold."""

    # ---- which GPU does what

    @property
    def is_sharded(self) -> bool:
        return self.gpus > 1

    @property
    def workers(self) -> int:
        """GPUs that train the actor, and the critic unless that has its own."""
        return self.gpus - others(self.config)

    @property
    def samplers(self) -> int:
        """Copies of the policy that only sample, of `tensor_parallel` GPUs each."""
        return self.config.ray.samplers // self.tensor_parallel

    @property
    def tensor_parallel(self) -> int:
        """GPUs of one sampler."""
        return self.config.rollout.tensor_parallel_size

    @property
    def sequence_parallel(self) -> int:
        """GPUs that share a row in training."""
        return self.config.ray.sequence_parallel_size if self.is_sharded else 1

    @property
    def samples_apart(self) -> bool:
        """Whether GPUs that train do not sample."""
        return self.is_sharded and self.config.ray.samplers > 0

    # ---- rows

    @property
    def total(self) -> int:
        """Responses per step."""
        return self.config.rollout.batch_size * self.config.rollout.n

    @property
    def rows(self) -> int:
        """Responses of the GPU that trains most."""
        return ceil_div(self.total * self.sequence_parallel, self.workers)

    @property
    def row(self) -> int:
        """Tokens of a row."""
        return self.prompt + self.response

    # ---- numbers

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

    # ---- what is trained

    @property
    def roles(self) -> tuple[Trained, Trained]:
        """(critic, actor): the order of their updates."""
        config = self.config
        critic_gpus = config.ray.critic_workers if self.is_sharded else 0
        critic = self._trained(
            self.critic, self.critic.critic, 0, config.critic, critic_gpus or self.workers
        )
        actor = self._trained(
            self.actor, self.actor.policy, self.actor.table, config.actor, self.workers
        )
        return critic, actor

    @property
    def roles_with_actor(self) -> tuple[Trained, ...]:
        """Those that a GPU that trains the actor trains: the critic too unless it has its own."""
        critic_apart = self.is_sharded and self.config.ray.critic_workers
        return self.roles[1:] if critic_apart else self.roles

    def _trained(
        self, shape: Shape, weights: int, head: int, settings: OptimizerConfig, gpus: int
    ) -> Trained:
        tokens = settings.micro_batch_tokens
        split = self.sequence_parallel
        rows = ceil_div(self.total * split, gpus)
        share = ceil_div(self.total * split, settings.minibatches * gpus)
        passes = ceil_div(share, max(tokens // self.row, 1))
        forwards = ceil_div(rows, max(4 * tokens // self.row, 1))
        model = self.config.model
        return Trained(
            shape=shape,
            weights=weights,
            trained=shape.adapters(model.lora_rank, model.lora_targets) if self.lora else weights,
            head=head,
            settings=settings,
            gpus=gpus,
            shards=min(self.config.ray.fsdp_size or gpus, gpus),
            rows=rows,
            steps=settings.epochs * settings.minibatches,
            passes=passes,
            pass_rows=ceil_div(share, passes),
            forwards=forwards,
            forward_rows=ceil_div(rows, forwards),
        )


def others(config: Config) -> int:
    """GPUs that do not train the actor."""
    ray = config.ray
    if config.backend == "local":
        return 0
    return ray.samplers + ray.critic_workers + ray.reward_workers


def all_gpus(config: Config) -> int:
    """The GPUs that a config asks for."""
    return others(config) + config.ray.workers if config.backend == "ray" else 1
