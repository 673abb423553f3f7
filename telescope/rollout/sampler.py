"""The in-process sampler: it reads the actor's own weights, so there is nothing to copy or to keep in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from telescope.algorithms import log_probs_from_logits
from telescope.config import RolloutConfig


@dataclass(frozen=True)
class Rollout:
    """Responses as sampled, right-padded. A response ends with its EOS, which is a token like any other."""

    responses: Tensor
    """[B, T] token ids."""
    lengths: Tensor
    """[B] tokens of each response, EOS included."""
    log_probs: Tensor
    """[B, T] log-probability of each token at the sampling temperature, before top-p / top-k, 0 past the end."""
    truncated: Tensor
    """[B] True where the limit came before EOS."""


class Sampler(Protocol):
    def generate(self, input_ids: Tensor, attention_mask: Tensor, *, seed: int, greedy: bool = False) -> Rollout: ...


class TorchSampler:
    """Batched sampling with a KV cache, one forward per token. The same seed gives the same responses."""

    def __init__(self, model: Any, config: RolloutConfig, *, stop: Sequence[int], pad: int) -> None:
        self.model, self.config, self.pad = model, config, pad
        self.stop = torch.tensor(list(stop), device=model.device)

    @torch.no_grad()
    def generate(self, input_ids: Tensor, attention_mask: Tensor, *, seed: int, greedy: bool = False) -> Rollout:
        """Continues left-padded prompts [B, P] until EOS or `max_response_tokens`."""
        limit, device = self.config.max_response_tokens, input_ids.device
        generator = torch.Generator(device).manual_seed(seed)
        rows, prompt = input_ids.shape
        mask = torch.cat([attention_mask, attention_mask.new_ones(rows, limit)], dim=1)
        position = attention_mask.sum(1, keepdim=True)  # of the next token
        alive = torch.ones(rows, dtype=torch.bool, device=device)
        tokens, log_probs, lengths = [], [], torch.zeros(rows, dtype=torch.long, device=device)
        cache, step_ids = None, input_ids
        step_positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        for t in range(limit):
            out = self.model(
                input_ids=step_ids,
                attention_mask=mask[:, : prompt + t],
                position_ids=step_positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            logits = out.logits.squeeze(1).float() / self.config.temperature  # [B, V]
            token = logits.argmax(-1) if greedy else self._sample(logits, generator)
            tokens.append(torch.where(alive, token, self.pad))
            log_probs.append(torch.where(alive, log_probs_from_logits(logits, token), 0.0))
            lengths += alive
            alive = alive & ~torch.isin(token, self.stop)
            if not bool(alive.any()):
                break
            step_ids, step_positions, position = token.unsqueeze(1), position, position + 1
        return Rollout(torch.stack(tokens, 1), lengths, torch.stack(log_probs, 1), alive)

    def _sample(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        probabilities = restrict(logits, top_k=self.config.top_k, top_p=self.config.top_p).softmax(-1)
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)


def restrict(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Logits with everything outside the top k, then outside the nucleus of probability `top_p`, at −inf."""
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[..., -1:], -torch.inf)
    if top_p < 1:
        ordered, index = logits.sort(-1, descending=True)
        probability = ordered.softmax(-1)
        outside = probability.cumsum(-1) - probability >= top_p  # the mass before this token already suffices
        logits = logits.masked_fill(outside.scatter(-1, index, outside), -torch.inf)
    return logits
