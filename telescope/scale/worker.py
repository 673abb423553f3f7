"""One worker process: its shard of every model it holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed.distributed_c10d import _set_pg_timeout

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.ledger.writer import Noted, Notes
from telescope.models.load import load_sharded, load_tokenizer_of, new_policy, new_value_model
from telescope.models.parallel import ProcessGroup
from telescope.roles.critic import Critic
from telescope.roles.factory import (
    check_vocabulary,
    choose_device,
    keep_freed_memory,
    make_actor,
    make_reward_model,
    reference_model,
    resolve_model,
)
from telescope.roles.reference import Reference
from telescope.rollout.vllm import Team
from telescope.scale.samplers import SamplingRole, WeightChannel, uses_nccl


class Worker:
    """What runs in the process. Its group calls every method by name, through Ray."""

    config: Config
    device: torch.device
    roles: dict[str, Any]
    channel: WeightChannel | None = None

    def pid(self) -> int:
        return os.getpid()

    def node(self) -> str:
        """The id of the machine it runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def address(self) -> str:
        """Host and free port at which the first worker will wait for the others."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def build(
        self, config: Config, roles: Sequence[str], rank: int, size: int, address: str
    ) -> dict[str, str]:
        """Joins the process group and loads the models of `roles`.

        `address` is where the workers that compute together meet: all, or those of one sampler.
        Returns checksums of the weights that they start from.
        """
        self.config = config
        self.device = choose_device(config.device)
        keep_freed_memory()
        self.roles = {}
        torch.set_num_threads(max((os.cpu_count() or 1) // size, 1))
        if "sampler" in roles:  # no process group: vLLM makes its own where it needs one
            team_size = config.rollout.tensor_parallel_size
            team = Team(rank % team_size, team_size, address) if team_size > 1 else None
            self.roles["sampler"] = SamplingRole(config, self.device, team)
            return {}
        if "reward" in roles:
            source = resolve_model(config)
            tokenizer = load_tokenizer_of(source)
            self.roles["reward"] = make_reward_model(config, tokenizer, self.device)
            return {}
        ranks = self._join_process_group(rank, size, address)
        origin = {}
        if "actor" in roles:
            origin["actor"] = self._build_actor(ranks)
        if "critic" in roles:
            origin["critic"] = self._build_critic(ranks)
        return origin

    def _join_process_group(self, rank: int, size: int, address: str) -> ProcessGroup:
        timeout = timedelta(seconds=self.config.ray.timeout)
        # metrics and counts are reduced on the CPU, so a GPU worker needs gloo too
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if uses_nccl(self.config, self.device) else "gloo",
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=size,
            timeout=timeout,
        )
        ray = self.config.ray
        ranks = ProcessGroup(self.device, ray.fsdp_size, ray.sequence_parallel_size)
        own = [ranks.sequence.group] if ranks.sequence else []
        for group in [*ranks.mesh.get_all_groups(), *own]:
            _set_pg_timeout(timeout, group)  # torch's own default: 10 minutes for NCCL
        return ranks

    def _build_actor(self, ranks: ProcessGroup) -> str:
        """Loads actor and reference; with LoRA they share one model."""
        source = resolve_model(self.config)
        own_reference = source.reference_path is not None
        count = 1 if source.lora_rank or own_reference else 2
        models, fingerprint = load_sharded(new_policy, source, ranks, count=count)
        policy, reference = models[0], models[-1]
        if own_reference:
            (reference,), _ = load_sharded(new_policy, reference_model(self.config), ranks)
        if reference is not policy:
            reference.requires_grad_(False)
        actor = make_actor(self.config, policy, ranks)
        check_vocabulary(reference, actor.tokenizer, self.config)
        self.roles["actor"] = actor
        self.roles["reference"] = Reference(reference, self.config, ranks)
        return fingerprint

    def _build_critic(self, ranks: ProcessGroup) -> str:
        config = self.config
        make = partial(new_value_model, bins=config.critic.histogram, head_seed=config.head_seed)
        (model,), fingerprint = load_sharded(make, resolve_model(config), ranks)
        self.roles["critic"] = Critic(model, config, ranks)
        return fingerprint

    def call(self, role: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method of a role, with batches moved to this worker's device."""
        placed = [
            argument.to(self.device) if isinstance(argument, TokenBatch) else argument
            for argument in arguments
        ]
        return getattr(self.roles[role], method)(*placed, **named)

    def update(
        self, role: str, batch: TokenBatch, limit: int
    ) -> tuple[dict[str, float], dict[str, list[Noted]]]:
        """Updates a role; returns metrics, and its loss terms of the first `limit` samples."""
        notes = Notes(limit)
        metrics = self.call(role, f"update_{role}", batch, notes)
        on_cpu: dict[str, list[Noted]] = {}
        for name, noted in notes.take().items():
            on_cpu[name] = [
                (epoch, number, rows, {key: value.cpu() for key, value in terms.items()})
                for epoch, number, rows, terms in noted
            ]
        return metrics, on_cpu

    def version(self) -> int:
        """Updates of the actor so far."""
        return int(self.roles["actor"].learner.updates)

    def beta(self) -> float:
        return float(self.roles["actor"].beta)

    def join(self, rank: int, size: int, address: str) -> list[tuple[str, tuple[int, ...]]]:
        """Joins the channel that weights take to the samplers.

        Rank 0 will send them. It returns their names and shapes.
        """
        timeout = timedelta(seconds=self.config.ray.timeout)
        nccl = uses_nccl(self.config, self.device)
        self.channel = WeightChannel(address, rank, size, self.device, timeout, nccl=nccl)
        if rank != 0:
            return []
        stored = self.roles["actor"].stored_weights()
        return [(name, tuple(value.shape)) for name, value, _ in stored]

    def send_weights(self) -> None:
        """Gathers each weight over all training ranks; rank 0 sends it to the samplers."""
        dtype = getattr(torch, self.config.model.dtype)
        for _, value in self.roles["actor"].weights(dtype):
            if self.channel is not None:
                self.channel.broadcast(value.contiguous())
        if self.channel is not None:
            self.channel.finish()

    def receive_weights(self, shapes: Sequence[tuple[str, Sequence[int]]], version: int) -> None:
        """Takes the weights that rank 0 sends."""
        assert self.channel is not None
        named = self.channel.receive(shapes, getattr(torch, self.config.model.dtype))
        self.roles["sampler"].load_weights(named, version)
        self.channel.finish()
