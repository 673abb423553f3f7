"""Workers that only sample: what such a worker holds, and how trained weights get to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.data.loader import Prompts
from telescope.models.load import load_policy, load_tokenizer_of
from telescope.roles.factory import make_sampler, make_tools, resolve_model
from telescope.rollout.sampler import sample_batch
from telescope.rollout.vllm import Team


class SamplingRole:
    """A policy that is not trained here: vLLM's, or one of ours whose weights are overwritten.

    `team`: the workers that hold one policy together. The first of them samples for all.
    """

    def __init__(self, config: Config, device: torch.device, team: Team | None = None) -> None:
        source = resolve_model(config)
        self.device = device
        self.tokenizer = load_tokenizer_of(source)
        self.policy: Any = None
        if config.rollout.engine == "torch":
            without_lora = source.model_copy(update={"lora_rank": 0})  # adapters come merged
            self.policy = load_policy(without_lora, device).requires_grad_(False)
        self.tools = make_tools(config, self.tokenizer)
        self.sampler: Any = make_sampler(
            config, self.policy, self.tokenizer, device, self.tools, team
        )
        self.team = team

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch | None:
        """Responses to the prompts; None in all but the first worker of a team."""
        if self.team is not None and self.team.rank:
            self.sampler.follow()
            return None
        batch = sample_batch(
            self.sampler, prompts, self.tokenizer, self.device, greedy=greedy, tools=self.tools
        )
        if self.team is not None:
            self.sampler.dismiss()
        return batch

    @torch.no_grad()
    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Overwrites the weights with those of the trained policy."""
        if self.policy is not None:
            own = self.policy.state_dict()
            for name, value in named:
                own[name].copy_(value)
        self.sampler.version = -1  # so that it does not skip a version that it thinks it has
        self.sampler.load_weights(named, version)


def uses_nccl(config: Config, device: torch.device) -> bool:
    """Whether tensors on the device go over NCCL, which refuses two ranks on one GPU."""
    return device.type == "cuda" and config.ray.workers_per_gpu == 1


class WeightChannel:
    """A process group beside torch's default one: rank 0 sends weights, the others receive."""

    def __init__(
        self,
        address: str,
        rank: int,
        size: int,
        device: torch.device,
        timeout: timedelta,
        *,
        nccl: bool = False,
    ) -> None:
        dist: Any = torch.distributed
        host, port = address.rsplit(":", 1)
        store = dist.TCPStore(host, int(port), size, is_master=rank == 0, timeout=timeout)
        self.device = device
        self.group: Any
        if nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self.group = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            self.group = dist.ProcessGroupGloo(store, rank, size, timeout)

    def broadcast(self, value: Tensor) -> Tensor:
        """Rank 0's value, on every rank."""
        self.group.broadcast(value, 0).wait()
        return value

    def finish(self) -> None:
        """Waits until everything has arrived. NCCL only queues a broadcast on the GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def receive(
        self, shapes: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields what rank 0 sends, name by name, so that one weight at a time is held twice."""
        for name, shape in shapes:
            yield name, self.broadcast(torch.empty(shape, dtype=dtype, device=self.device))
