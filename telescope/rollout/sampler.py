"""The in-process sampler: it reads the actor's own weights, so there is nothing to copy or to keep in step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from telescope.algorithms import log_probs_from_logits
from telescope.batch import TokenBatch
from telescope.config import RolloutConfig
from telescope.models.parallel import gathered

if TYPE_CHECKING:
    from telescope.data.loader import Prompts
    from telescope.rollout.tools import Tools


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
    chosen: Tensor | None = None
    """[B, T] False where a tool wrote the token; none: all were sampled."""


class Sampler(Protocol):
    version: int
    """Updates that its weights have seen."""

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Called before every rollout with the actor's weights, which are made when asked for."""
        ...

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        seed: int,
        greedy: bool = False,
        rows: Sequence[int] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Rollout:
        """Continues left-padded prompts [B, P] until EOS or their `limits`, by default `max_response_tokens` each.

        `rows` are their numbers within the step (default: 0, 1, …). What is drawn for a row depends on seed, number and token
        alone, so it is the same whichever rows are sampled beside it.
        """
        ...


class TorchSampler:
    """Batched sampling with a KV cache, one forward per token."""

    def __init__(self, model: Any, config: RolloutConfig, *, stop: Sequence[int], pad: int) -> None:
        self.model, self.config, self.pad = model, config, pad
        self.stop = torch.tensor(list(stop), device=model.device)
        self.version = 0

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.version = version  # the weights are there: they are the actor's own

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        seed: int,
        greedy: bool = False,
        rows: Sequence[int] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Rollout:
        with gathered(self.model):
            return self._generate(
                input_ids,
                attention_mask,
                seed,
                greedy,
                rows,
                limits or [self.config.max_response_tokens] * len(input_ids),
            )

    def _generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        seed: int,
        greedy: bool,
        rows: Sequence[int] | None,
        limits: Sequence[int],
    ) -> Rollout:
        device, (count, prompt), limit = input_ids.device, input_ids.shape, max(limits)
        most = torch.tensor(limits, device=device)
        chances = uniforms(seed, list(range(count)) if rows is None else rows, limit).to(device)
        mask = torch.cat([attention_mask, attention_mask.new_ones(count, limit)], dim=1)
        position = attention_mask.sum(1, keepdim=True)  # of the next token
        alive = torch.ones(count, dtype=torch.bool, device=device)
        ended = torch.zeros_like(alive)
        tokens, log_probs, lengths = [], [], torch.zeros(count, dtype=torch.long, device=device)
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
            token = logits.argmax(-1) if greedy else self._sample(logits, chances[:, t])
            tokens.append(torch.where(alive, token, self.pad))
            log_probs.append(torch.where(alive, log_probs_from_logits(logits, token), 0.0))
            lengths += alive
            ended = ended | (alive & torch.isin(token, self.stop))
            alive = ~ended & (lengths < most)
            if not bool(alive.any()):
                break
            step_ids, step_positions, position = token.unsqueeze(1), position, position + 1
        return Rollout(torch.stack(tokens, 1), lengths, torch.stack(log_probs, 1), ~ended)

    def _sample(self, logits: Tensor, chance: Tensor) -> Tensor:
        """The token at which the probability summed up so far passes `chance`."""
        summed = (
            restrict(logits, top_k=self.config.top_k, top_p=self.config.top_p)
            .softmax(-1)
            .double()
            .cumsum(-1)
        )
        return (
            torch.searchsorted(summed, chance[:, None] * summed[:, -1:], right=True)
            .squeeze(1)
            .clamp(max=logits.shape[-1] - 1)
        )


class GivenSampler:
    """Writes what it was given, one turn a call, whatever the prompts."""

    def __init__(self, turns: Iterable[Sequence[int]], version: int = 0) -> None:
        self.turns, self.version = iter(turns), version

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """It has none."""

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Rollout:
        responses = torch.tensor([list(next(self.turns))], device=input_ids.device).expand(
            len(input_ids), -1
        )  # [B, T]
        lengths = torch.full((len(responses),), responses.shape[1], device=input_ids.device)
        return Rollout(
            responses,
            lengths,
            torch.zeros(responses.shape, device=input_ids.device),
            torch.zeros_like(lengths).bool(),
        )


def sample_batch(
    sampler: Sampler,
    prompts: Prompts,
    tokenizer: Any,
    device: torch.device,
    *,
    greedy: bool,
    tools: Tools | None = None,
) -> TokenBatch:
    """A batch of the prompts and what the sampler answers, with `tools` over several turns."""
    input_ids, attention_mask = left_pad(prompts.ids, tokenizer.pad_token_id, device)
    version = sampler.version
    more: dict[str, list[Any]] = {}
    if tools is None:
        out = sampler.generate(
            input_ids, attention_mask, seed=prompts.seed, greedy=greedy, rows=prompts.rows
        )
    else:
        out, more = tools.roll(sampler, prompts, device, greedy=greedy)
    # the mask comes from the lengths, not from comparing ids: pad may be the same token as EOS
    written = torch.arange(out.responses.shape[1], device=device) < out.lengths[:, None]  # [B, T]
    attention = torch.cat([attention_mask, written.long()], 1)  # [B, P+T]
    responses = [
        row[:n] for row, n in zip(out.responses.tolist(), out.lengths.tolist(), strict=True)
    ]
    return TokenBatch(
        {
            "prompts": input_ids,
            "input_ids": torch.cat([input_ids, out.responses], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
            "responses": out.responses,
            "sample": torch.tensor(list(prompts.rows or range(len(responses))), device=device),
            "group": torch.tensor(prompts.info["prompt_index"], device=device),
            "policy_version": torch.full((len(responses),), version, device=device),
            "response_mask": (written if out.chosen is None else written & out.chosen).long(),
            "truncated": out.truncated,
            "rollout_log_probs": out.log_probs,
        },
        {
            **prompts.info,
            **more,
            "response": tokenizer.batch_decode(responses, skip_special_tokens=True),
            "response_ids": responses,
        },
    )


def with_baseline(batch: TokenBatch, greedy: TokenBatch) -> TokenBatch:
    """The batch with the greedy answers to its prompts, whose scores are ReMax's baseline."""
    names = [name for name in ("response", "response_ids", "last_turn") if name in greedy.info]
    return batch.with_info(**{f"greedy_{name}": greedy.info[name] for name in names})


def left_pad(ids: list[list[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token lists to input_ids and attention_mask, both [B, P]."""
    width = max(len(row) for row in ids)
    input_ids = torch.tensor([[pad] * (width - len(row)) + row for row in ids], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=device)
    return input_ids, mask


def cache_shape(config: Any) -> tuple[tuple[int, int], int]:
    """((key-value heads, head size), layers)."""
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return (
        heads,
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    ), config.num_hidden_layers


def uniforms(seed: int, rows: Sequence[int], count: int) -> Tensor:
    """`count` numbers in [0, 1) for each row, float64 [B, count]: a hash of (seed, row, place), the same wherever it is computed."""
    with np.errstate(over="ignore"):
        row = np.asarray(rows, dtype=np.uint64)[:, None] + np.uint64(1)
        mixed = (
            np.uint64(seed)
            + row * np.uint64(0x9E3779B97F4A7C15)
            + np.arange(count, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
        )
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def restrict(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Logits with everything outside the top k, then outside the nucleus of probability `top_p`, at −inf."""
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[..., -1:], -torch.inf)
    if top_p < 1:
        ordered, index = logits.sort(-1, descending=True)
        probability = ordered.softmax(-1)
        outside = (
            probability.cumsum(-1) - probability >= top_p
        )  # the mass before this token already suffices
        logits = logits.masked_fill(outside.scatter(-1, index, outside), -torch.inf)
    return logits
