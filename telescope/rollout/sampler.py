"""Sampling: the interface of a sampler, the one in this process, and the batch they make.

`TorchSampler` reads the actor's own weights, so there is nothing to copy or to keep in step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from telescope.algorithms import log_probs_from_logits
from telescope.batch import Response, RowInfo, TokenBatch, ToolUse
from telescope.config import RolloutConfig
from telescope.errors import DivergedError
from telescope.models.parallel import gathered

if TYPE_CHECKING:
    from telescope.data.loader import Prompts
    from telescope.rollout.tools import Tools


@dataclass(frozen=True)
class Rollout:
    """Responses as sampled, right-padded. A response ends with its EOS, a token like any other."""

    responses: Tensor
    """[B, T] token ids."""
    lengths: Tensor
    """[B] tokens of each response, EOS included."""
    log_probs: Tensor
    """[B, T] log-probs at the sampling temperature, before top-p / top-k; 0 past the end."""
    truncated: Tensor
    """[B] True where the limit came before EOS."""
    chosen: Tensor | None = None
    """[B, T] False where a tool wrote the token; None: all were sampled."""


class Sampler(Protocol):
    """Prompts in, sampled token ids and their log-probs out."""

    version: int
    """Policy updates that its weights include."""

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes the actor's weights, before a rollout. `named` gathers them when iterated."""

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
        """Continues left-padded prompts [B, P] until EOS or a limit of tokens.

        `limits` are the rows' limits, `max_response_tokens` by default. `rows` are their numbers
        within the step, by default 0, 1, …. What is drawn for a row depends on seed, number and
        token position alone, so it is the same whichever rows are sampled beside it.
        """


class TorchSampler:
    """Batched sampling with a KV cache, one forward per token."""

    def __init__(self, model: Any, config: RolloutConfig, *, stop: Sequence[int], pad: int) -> None:
        self.model = model
        self.config = config
        self.pad = pad
        self.stop = torch.tensor(list(stop), device=model.device)
        self.version = 0

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copies nothing: the weights are the actor's own."""
        self.version = version

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
        """See `Sampler.generate`."""
        limits = limits or [self.config.max_response_tokens] * len(input_ids)
        numbers = list(range(len(input_ids))) if rows is None else rows
        chances = uniforms(seed, numbers, max(limits)).to(input_ids.device)
        with gathered(self.model):
            return self._generate(input_ids, attention_mask, None if greedy else chances, limits)

    def _generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        chances: Tensor | None,
        limits: Sequence[int],
    ) -> Rollout:
        """Draws with `chances` [B, T]; greedy without them."""
        device = input_ids.device
        count, prompt_width = input_ids.shape
        limit = max(limits)
        row_limits = torch.tensor(limits, device=device)
        mask = torch.cat([attention_mask, attention_mask.new_ones(count, limit)], dim=1)
        next_position = attention_mask.sum(1, keepdim=True)
        alive = torch.ones(count, dtype=torch.bool, device=device)
        ended = torch.zeros_like(alive)
        lengths = torch.zeros(count, dtype=torch.long, device=device)
        tokens, log_probs = [], []
        cache = None
        step_ids = input_ids
        step_positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        for t in range(limit):
            out = self.model(
                input_ids=step_ids,
                attention_mask=mask[:, : prompt_width + t],
                position_ids=step_positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            logits = out.logits.squeeze(1).float() / self.config.temperature  # [B, V]
            token = logits.argmax(-1) if chances is None else self._sample(logits, chances[:, t])
            tokens.append(torch.where(alive, token, self.pad))
            log_probs.append(torch.where(alive, log_probs_from_logits(logits, token), 0.0))
            lengths += alive
            ended = ended | (alive & torch.isin(token, self.stop))
            alive = ~ended & (lengths < row_limits)
            if not bool(alive.any()):
                break
            step_ids = token.unsqueeze(1)
            step_positions = next_position
            next_position = next_position + 1
        return Rollout(torch.stack(tokens, 1), lengths, torch.stack(log_probs, 1), ~ended)

    def _sample(self, logits: Tensor, chance: Tensor) -> Tensor:
        """The token at which the cumulative probability passes `chance`, [B]."""
        allowed = restrict(logits, top_k=self.config.top_k, top_p=self.config.top_p)
        summed = allowed.softmax(-1).double().cumsum(-1)  # [B, V]
        threshold = chance[:, None] * summed[:, -1:]
        token = torch.searchsorted(summed, threshold, right=True).squeeze(1)
        return token.clamp(max=logits.shape[-1] - 1)


class GivenSampler:
    """Writes the turns it was given, one per call, whatever the prompts."""

    def __init__(self, turns: Iterable[Sequence[int]], version: int = 0) -> None:
        self.turns = iter(turns)
        self.version = version

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Does nothing: there is no model."""

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Rollout:
        """The next turn, for every row."""
        device = input_ids.device
        turn = torch.tensor([list(next(self.turns))], device=device)
        responses = turn.expand(len(input_ids), -1)  # [B, T]
        lengths = torch.full((len(responses),), responses.shape[1], device=device)
        log_probs = torch.zeros(responses.shape, device=device)
        return Rollout(responses, lengths, log_probs, torch.zeros_like(lengths).bool())


def sample_batch(
    sampler: Sampler,
    prompts: Prompts,
    tokenizer: Any,
    device: torch.device,
    *,
    greedy: bool,
    tools: Tools | None = None,
) -> TokenBatch:
    """Samples responses to the prompts, with `tools` over several turns, as a batch."""
    input_ids, attention_mask = left_pad(prompts.ids, tokenizer.pad_token_id, device)
    version = sampler.version
    known: Sequence[Response] = [Response() for _ in range(len(prompts))]
    tool_uses: Sequence[ToolUse | None] = [None] * len(prompts)
    if tools is None:
        out = sampler.generate(
            input_ids, attention_mask, seed=prompts.seed, greedy=greedy, rows=prompts.rows
        )
    else:
        rolled = tools.roll(sampler, prompts, device, greedy=greedy)
        out, known, tool_uses, own_prompts = rolled
        if own_prompts is not None:
            input_ids, attention_mask = left_pad(own_prompts, tokenizer.pad_token_id, device)
    # the mask comes from the lengths, not from comparing ids: pad may be the same token as EOS
    written = torch.arange(out.responses.shape[1], device=device) < out.lengths[:, None]  # [B, T]
    chosen = written if out.chosen is None else written & out.chosen
    if bool((out.log_probs.isnan() & chosen).any()):
        raise DivergedError(
            "the policy's probabilities are not numbers, so its answers mean nothing: "
            "its weights diverged, or the model's files are damaged"
        )
    attention = torch.cat([attention_mask, written.long()], 1)  # [B, P+T]
    ids = [row[:n] for row, n in zip(out.responses.tolist(), out.lengths.tolist(), strict=True)]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    responses = [
        replace(response, text=text, ids=own)
        for response, text, own in zip(known, texts, ids, strict=True)
    ]
    columns = {
        "prompts": input_ids,
        "input_ids": torch.cat([input_ids, out.responses], 1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "responses": out.responses,
        "sample": torch.tensor(list(prompts.rows or range(len(ids))), device=device),
        "group": torch.tensor(prompts.info["prompt_index"], device=device),
        "policy_version": torch.full((len(ids),), version, device=device),
        "response_mask": chosen.long(),
        "truncated": out.truncated,
        "rollout_log_probs": out.log_probs,
    }
    return TokenBatch(columns, _row_infos(prompts, responses, tool_uses))


def _row_infos(
    prompts: Prompts, responses: Sequence[Response], tool_uses: Sequence[ToolUse | None]
) -> list[RowInfo]:
    texts = prompts.info["prompt"]
    places = prompts.info["prompt_index"]
    data = prompts.info.get("data", [{}] * len(prompts))
    rows = zip(texts, places, data, responses, tool_uses, strict=True)
    return [
        RowInfo(prompt=text, prompt_index=place, data=known, response=response, tools=tool_use)
        for text, place, known, response, tool_use in rows
    ]


def with_greedy_responses(batch: TokenBatch, greedy: TokenBatch) -> TokenBatch:
    """Adds the greedy responses to the same prompts, whose scores are a baseline."""
    return batch.with_info(greedy=[row.response for row in greedy.info])


def left_pad(ids: list[list[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Turns token lists into input_ids and attention_mask, both [B, P]."""
    width = max(len(row) for row in ids)
    padded = [[pad] * (width - len(row)) + row for row in ids]
    exists = [[0] * (width - len(row)) + [1] * len(row) for row in ids]
    return torch.tensor(padded, device=device), torch.tensor(exists, device=device)


def unpadded(input_ids: Tensor, attention_mask: Tensor) -> list[list[int]]:
    """The token lists of which `left_pad` made these."""
    exists = attention_mask.bool().cpu()
    return [row[kept].tolist() for row, kept in zip(input_ids.cpu(), exists, strict=True)]


def cache_shape(config: Any) -> tuple[tuple[int, int], int]:
    """((key-value heads, head size), layers) of a Hugging Face config."""
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (heads, size), config.num_hidden_layers


def uniforms(seed: int, rows: Sequence[int], count: int) -> Tensor:
    """`count` numbers in [0, 1) for each row, float64 [B, count].

    They are a hash (SplitMix64) of seed, row and position, the same wherever they are computed.
    """
    with np.errstate(over="ignore"):
        row = np.asarray(rows, dtype=np.uint64)[:, None] + np.uint64(1)
        position = np.arange(count, dtype=np.uint64)
        mixed = np.uint64(seed) + row * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed + position * np.uint64(0xD1B54A32D192ED03)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def restrict(logits: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Sets logits to −inf outside the top k, then outside the nucleus of probability `top_p`."""
    if 0 < top_k < logits.shape[-1]:
        kth_largest = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < kth_largest, -torch.inf)
    if top_p < 1:
        ordered, index = logits.sort(-1, descending=True)
        probability = ordered.softmax(-1)
        mass_before = probability.cumsum(-1) - probability
        outside = mass_before >= top_p
        logits = logits.masked_fill(outside.scatter(-1, index, outside), -torch.inf)
    return logits
