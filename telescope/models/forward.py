"""The model forward: the only place in the package that shifts by one.

A causal model's output at a position has seen the token there and predicts the next one. So what belongs to response
token t, the logits that chose it and the value of the state before it, is read one position to the left of the token.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from telescope.algorithms import entropy_from_logits, log_probs_from_logits
from telescope.batch import TokenBatch
from telescope.models.fast.packed import Packed, hidden_states, linear_log_probs
from telescope.models.load import ValueModel, is_packable
from telescope.models.parallel import within


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
    logits: Tensor | None = None
    """Of the bins of the states before the tokens, [B, T, K], where the head says a histogram."""


def policy_forward(
    model: Any,
    batch: TokenBatch,
    *,
    temperature: float,
    entropy: Literal["none", "value", "gradient"] = "none",
) -> PolicyOutput:
    if is_packable(model):
        return within(model, lambda: _packed_policy(model, PackedRows(batch), temperature, entropy))
    width = batch["responses"].shape[1]
    logits = (
        model(**_inputs(batch), logits_to_keep=width + 1, use_cache=False)
        .logits[:, -width - 1 : -1]
        .float()
    )  # [B, T, V]
    if temperature != 1:
        logits = logits / temperature
    log_probs = log_probs_from_logits(logits, batch["responses"])
    if entropy == "none":
        return PolicyOutput(log_probs, torch.empty(0))
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        return PolicyOutput(log_probs, entropy_from_logits(logits))


def value_forward(model: ValueModel, batch: TokenBatch) -> ValueOutput:
    if is_packable(model.backbone):
        return within(model, lambda: _packed_values(model, PackedRows(batch)))
    width = batch["responses"].shape[1]
    outputs = within(
        model,
        lambda: model.outputs(model.backbone(**_inputs(batch), use_cache=False).last_hidden_state),
    )  # [B, P+T, K]
    values = model.values(outputs)  # [B, P+T]
    existing = batch["attention_mask"].bool()
    last = torch.where(existing, torch.arange(existing.shape[1], device=existing.device), 0).amax(
        1, keepdim=True
    )
    logits = outputs[:, -width - 1 : -1] if model.bins else None
    return ValueOutput(values[:, -width - 1 : -1], values.gather(1, last).squeeze(1), logits)


def _packed_policy(model: Any, rows: PackedRows, temperature: float, entropy: str) -> PolicyOutput:
    states = rows.hidden(model.base_model)[rows.before]  # [M, H]
    log_probs, spread = linear_log_probs(
        states,
        model.get_output_embeddings(),
        rows.tokens,
        temperature=temperature,
        entropy_gradient=entropy == "gradient",
    )
    return PolicyOutput(
        rows.unpack(log_probs), rows.unpack(spread) if entropy != "none" else spread
    )


def _packed_values(model: ValueModel, rows: PackedRows) -> ValueOutput:
    outputs = model.outputs(rows.hidden(model.backbone))  # [N, K]
    everywhere = model.values(outputs)  # [N]
    logits = rows.unpack(outputs[rows.before]) if model.bins else None
    return ValueOutput(rows.unpack(everywhere[rows.before]), everywhere[rows.last], logits)


class PackedRows(Packed):
    """The tokens of a batch without its padding, and where each response token's numbers are and belong."""

    def __init__(self, batch: TokenBatch) -> None:
        prompt, response = (
            np.asarray(batch.host(name), dtype=np.int64) for name in ("prompt", "response")
        )
        super().__init__(prompt + response, batch["input_ids"].device)
        width, self.shape = batch["prompts"].shape[1], batch["responses"].shape
        self.batch = batch
        row = np.repeat(np.arange(len(prompt)), self.lengths)
        column = np.arange(self.total) - np.repeat(self.starts - width + prompt, self.lengths)
        t = np.arange(response.sum()) - np.repeat(np.cumsum(response) - response, response)
        self._places = self.to_device(
            row * batch["input_ids"].shape[1] + column
        )  # of every token, in input_ids
        self._slots = self.to_device(
            np.repeat(np.arange(len(prompt)), response) * self.shape[1] + t
        )  # of response tokens, in [B, T]
        # the shift: token t of the response is at starts + prompt + t, what chose it one to the left
        self.before = self.to_device(np.repeat(self.starts + prompt, response) + t - 1)
        self.last = self.to_device(self.ends - 1)

    @property
    def tokens(self) -> Tensor:
        """The response tokens, [M]."""
        return self.batch["responses"].reshape(-1)[self._slots]

    def hidden(self, backbone: Any) -> Tensor:
        """Last hidden states of all tokens, [N, H]."""
        ids = self.batch["input_ids"].reshape(-1)[self._places]
        captured = getattr(backbone, "captured", None)
        return (
            captured.hidden(backbone, ids, self)
            if captured
            else hidden_states(backbone, ids[None], self.positions[None], self)
        )

    def unpack(self, values: Tensor) -> Tensor:
        """Numbers of response tokens [M, ...] to [B, T, ...], 0 where there is none."""
        more = values.shape[1:]
        return (
            values.new_zeros(self.shape[0] * self.shape[1], *more)
            .index_put((self._slots,), values)
            .view(*self.shape, *more)
        )


def _inputs(batch: TokenBatch) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
