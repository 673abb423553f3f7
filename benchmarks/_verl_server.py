"""A rollout server of verl in plain transformers: one Ray actor that samples on the CPU.

It has the methods that verl's vLLM server has and its sync trainer calls. See `_verl_cpu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

NAME = "transformers_server_{}"


class Server:
    """Samples one request at a time, with a KV cache."""

    def __init__(self, config: Any, path: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(config.seed)
        self.config = config
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        ends = self.model.generation_config.eos_token_id
        self.ends = {ends} if isinstance(ends, int) else set(ends or ())
        self.step: int | None = None

    def load(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        """The weights of the policy; `step` is the number that verl gives them."""
        known = self.model.state_dict()
        missing = known.keys() - weights.keys() - {"lm_head.weight"}
        if missing:
            raise ValueError(f"no weights for {sorted(missing)[:3]}")
        self.model.load_state_dict(weights, strict=False)
        self.step = step

    @torch.no_grad()
    def sample(self, prompt: list[int], limit: int, temperature: float) -> TokenOutput:
        ids = torch.tensor([prompt])
        cache = None
        tokens: list[int] = []
        log_probs: list[float] = []
        while len(tokens) < limit and (not tokens or tokens[-1] not in self.ends):
            out = self.model(ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits = out.logits[0, -1].float()
            logp = torch.log_softmax(logits / (temperature or 1.0), -1)
            token = torch.multinomial(logp.exp(), 1) if temperature else logits.argmax()[None]
            tokens.append(int(token))
            log_probs.append(float(logp[token]))
            ids = token[None]
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self.step},
        )

    async def generate(
        self,
        prompt_ids: Any,
        sampling_params: dict[str, Any],
        request_id: str,
        **_: Any,
    ) -> TokenOutput:
        limit = sampling_params.get("max_tokens") or self.config.response_length
        return self.sample(list(prompt_ids), limit, float(sampling_params["temperature"]))

    async def nothing(self, *_: Any, **__: Any) -> None:
        """There is no cache on a device to put to sleep, and nothing runs between steps."""

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


class Replica(RolloutReplica):  # type: ignore[misc]
    async def launch_servers(self) -> None:
        name = NAME.format(self.replica_rank)
        server = ray.remote(Server).options(name=name, max_concurrency=self.max_concurrency)
        self.servers = [server.remote(self.config, self.model_config.path)]
        self._server_handle = self.servers[0]
        self._server_address = name


class Adapter(BaseRollout):  # type: ignore[misc]
    """The trainer's side: hands the policy's weights to the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, rank: int = 0) -> None:
        super().__init__(config, model_config, device_mesh)
        self.name = NAME.format(rank)

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        copied = {name: weight.detach().float().cpu().clone() for name, weight in weights}
        await ray.get_actor(self.name).load.remote(copied, global_steps)

    def generate_sequences(self, prompts: Any) -> Any:
        raise NotImplementedError("the agent loop asks the server")
