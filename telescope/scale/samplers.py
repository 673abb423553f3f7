"""Workers that only sample: what such a worker holds, and the way the trained weights take to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from telescope.batch import TokenBatch
from telescope.build import make_sampler, make_tools, resolve_model
from telescope.config import Config
from telescope.data.loader import Prompts
from telescope.models.load import load_policy, load_tokenizer
from telescope.rollout.sampler import sample_batch


class SamplingRole:
    """A policy that is not trained here: vLLM's, or one of ours whose weights are overwritten."""

    def __init__(self, config: Config, device: torch.device) -> None:
        source, self.device = resolve_model(config), device
        self.tokenizer = load_tokenizer(source.path, trust_remote_code=source.trust_remote_code)
        plain = source.model_copy(update={"lora_rank": 0})  # adapters come merged
        self.policy = (
            load_policy(plain, device).requires_grad_(False)
            if config.rollout.engine == "torch"
            else None
        )
        self.tools = make_tools(config, self.tokenizer)
        self.sampler = make_sampler(config, self.policy, self.tokenizer, device, self.tools)

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        return sample_batch(
            self.sampler, prompts, self.tokenizer, self.device, greedy=greedy, tools=self.tools
        )

    @torch.no_grad()
    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        if self.policy is not None:
            own = self.policy.state_dict()
            for name, value in named:
                own[name].copy_(value)
        self.sampler.version = -1  # so that it takes what is sent, which nobody else would
        self.sampler.load_weights(named, version)


class Link:
    """A process group beside torch's default one: the first process sends weights, the others receive them."""

    def __init__(
        self, address: str, rank: int, size: int, device: torch.device, timeout: timedelta
    ) -> None:
        import torch.distributed as dist

        host, port = address.rsplit(":", 1)
        store = dist.TCPStore(host, int(port), size, is_master=rank == 0, timeout=timeout)
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self.group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            self.group = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.device = device

    def share(self, value: Tensor) -> Tensor:
        """The first process's value, in all of them."""
        self.group.broadcast(value, 0).wait()
        return value

    def received(
        self, described: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype
    ) -> Iterator[tuple[str, Tensor]]:
        """Name by name, what the first process shares: never more than one of them at a time is held twice."""
        for name, shape in described:
            yield name, self.share(torch.empty(shape, dtype=dtype, device=self.device))
