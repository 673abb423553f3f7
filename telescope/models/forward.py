"""The model forward: the only place in the package that shifts by one.

A causal model's output at a position has seen the token there and predicts the next one. So what belongs to response
token t, the logits that chose it and the value of the state before it, is read one position to the left of the token.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from telescope.algorithms import entropy_from_logits, log_probs_from_logits
from telescope.batch import TokenBatch
from telescope.models.load import ValueModel


class PolicyOutput(NamedTuple):
    log_probs: Tensor
    """log π(a_t|s_t) of the response tokens at the sampling temperature, [B, T]."""
    entropy: Tensor
    """Entropy of π(·|s_t), [B, T]; empty if it was not asked for."""


class ValueOutput(NamedTuple):
    values: Tensor
    """V(s_t), before token t, [B, T]."""
    final: Tensor
    """V of the state after the last token that exists in the row, [B]."""


def policy_forward(
    model: Any, batch: TokenBatch, *, temperature: float, dtype: torch.dtype, entropy: Literal["none", "value", "gradient"] = "none"
) -> PolicyOutput:
    logits = response_logits(model, batch, dtype)  # [B, T, V]
    if temperature != 1:
        logits = logits / temperature
    log_probs = log_probs_from_logits(logits, batch["responses"])
    if entropy == "none":
        return PolicyOutput(log_probs, torch.empty(0))
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        return PolicyOutput(log_probs, entropy_from_logits(logits))


def response_logits(model: Any, batch: TokenBatch, dtype: torch.dtype) -> Tensor:
    """Logits that chose each response token, float32 [B, T, V]."""
    width = batch["responses"].shape[1]
    with autocast(batch, dtype):
        logits = model(**_inputs(batch), logits_to_keep=width + 1, use_cache=False).logits  # [B, T+1, V]
    return logits[:, -width - 1 : -1].float()


def value_forward(model: ValueModel, batch: TokenBatch, *, dtype: torch.dtype) -> ValueOutput:
    width = batch["responses"].shape[1]
    with autocast(batch, dtype):
        everywhere = model(**_inputs(batch))  # [B, P+T]
    existing = batch["attention_mask"].bool()
    last = torch.where(existing, torch.arange(existing.shape[1], device=existing.device), 0).amax(1, keepdim=True)
    return ValueOutput(everywhere[:, -width - 1 : -1], everywhere.gather(1, last).squeeze(1))


def autocast(batch: TokenBatch, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(batch["input_ids"].device.type, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16)


def _inputs(batch: TokenBatch) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
