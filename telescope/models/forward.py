"""The model forward: the only place in the package that shifts by one.

A causal model's output at a position has seen the token there and predicts the next one. So what
belongs to response token t, the logits that chose it and the value of the state before it, is read
one position to the left of the token.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from telescope.algorithms import entropy_from_logits, log_probs_from_logits
from telescope.batch import TokenBatch
from telescope.models.fast.packed import PackedRows, hidden_states, linear_log_probs
from telescope.models.fast.token_shard import TokenShard
from telescope.models.load import is_packable
from telescope.models.parallel import run_in_forward
from telescope.models.sequence import SequenceGroup
from telescope.models.value import ValueModel

Entropy = Literal["none", "value", "gradient"]
"""Whether a forward also returns the entropy, and whether a gradient flows through it."""


class PolicyOutput(NamedTuple):
    """What the policy says about the response tokens."""

    log_probs: Tensor
    """log π(a_t|s_t) of the response tokens at the sampling temperature, [B, T]."""
    entropy: Tensor
    """Entropy of π(·|s_t), [B, T]; empty if it was not asked for."""


class ValueOutput(NamedTuple):
    """What the critic says about the states."""

    values: Tensor
    """V(s_t), before token t, [B, T]."""
    final: Tensor
    """V of the state after the last token of the row, [B]."""
    logits: Tensor | None = None
    """Logits of the bins before each token, [B, T, K], if the head predicts a histogram."""


def policy_forward(
    model: Any,
    batch: TokenBatch,
    *,
    temperature: float,
    entropy: Entropy = "none",
) -> PolicyOutput:
    """Log-probs of the response tokens, and the entropy if it is asked for."""
    if is_packable(model):
        return run_in_forward(
            model, lambda: _packed_policy(model, _packed(model, batch), temperature, entropy)
        )
    width = batch["responses"].shape[1]
    output = model(**_inputs(batch), logits_to_keep=width + 1, use_cache=False)
    # The shift: outputs from the last prompt token on, without the last, which predicts nothing.
    logits = output.logits[:, -width - 1 : -1].float()  # [B, T, V]
    if temperature != 1:
        logits = logits / temperature
    log_probs = log_probs_from_logits(logits, batch["responses"])  # [B, T]
    if entropy == "none":
        return PolicyOutput(log_probs, torch.empty(0))
    with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
        return PolicyOutput(log_probs, entropy_from_logits(logits))


def value_forward(model: ValueModel, batch: TokenBatch) -> ValueOutput:
    """V of the state before each response token, and of the state after the last."""
    if is_packable(model.backbone):
        return run_in_forward(model, lambda: _packed_values(model, _packed(model.backbone, batch)))

    def outputs_everywhere() -> Tensor:
        hidden = model.backbone(**_inputs(batch), use_cache=False).last_hidden_state
        return model.outputs(hidden)

    outputs = run_in_forward(model, outputs_everywhere)  # [B, P+T, K]
    values = model.values(outputs)  # [B, P+T]
    exists = batch["attention_mask"].bool()  # [B, P+T]
    position = torch.arange(exists.shape[1], device=exists.device)
    last = torch.where(exists, position, 0).amax(1, keepdim=True)  # [B, 1]
    width = batch["responses"].shape[1]
    return ValueOutput(
        values=values[:, -width - 1 : -1],  # the shift: V(s_t) has not seen token t
        final=values.gather(1, last).squeeze(1),
        logits=outputs[:, -width - 1 : -1] if model.bins else None,
    )


def _packed_policy(
    model: Any, rows: PackedBatch, temperature: float, entropy: Entropy
) -> PolicyOutput:
    states = rows.hidden(model.base_model)[rows.before]  # [M, H]
    log_probs, entropies = linear_log_probs(
        states,
        model.get_output_embeddings(),
        rows.tokens,
        temperature=temperature,
        entropy_gradient=entropy == "gradient",
    )
    if entropy != "none":
        entropies = rows.unpack(entropies)
    return PolicyOutput(rows.unpack(log_probs), entropies)


def _packed_values(model: ValueModel, rows: PackedBatch) -> ValueOutput:
    outputs = model.outputs(rows.hidden(model.backbone))  # [N, K]
    values = model.values(outputs)  # [N]
    return ValueOutput(
        values=rows.unpack(values[rows.before]),
        final=rows.of_rows(values[rows.last]),
        logits=rows.unpack(outputs[rows.before]) if model.bins else None,
    )


class PackedBatch(PackedRows):
    """The N tokens of a batch without its padding, and the places of its M response tokens."""

    def __init__(self, batch: TokenBatch) -> None:
        prompt = np.asarray(batch.host("prompt"), dtype=np.int64)  # [B] tokens of each prompt
        response = np.asarray(batch.host("response"), dtype=np.int64)  # [B]
        super().__init__(prompt + response, batch["input_ids"].device)
        self.batch = batch
        self.shape = batch["responses"].shape

        # Index of every token in the flattened `input_ids`, [N]. Prompts are padded on the left.
        row = np.repeat(np.arange(len(prompt)), self.lengths)
        first_column = batch["prompts"].shape[1] - prompt
        column = np.arange(self.total) - np.repeat(self.starts - first_column, self.lengths)
        self._in_input_ids = self.to_device(row * batch["input_ids"].shape[1] + column)

        # Index of every response token in a flattened [B, T], [M].
        t = np.arange(response.sum()) - np.repeat(np.cumsum(response) - response, response)
        response_row = np.repeat(np.arange(len(prompt)), response)
        self._in_responses = self.to_device(response_row * self.shape[1] + t)

        # The shift: response token t is at starts + prompt + t; what chose it is one to the left.
        self._before = np.repeat(self.starts + prompt, response) + t - 1
        self.before = self.to_device(self._before)  # [M]
        self.last = self.to_device(self.ends - 1)  # [B]

    @property
    def tokens(self) -> Tensor:
        """The response tokens, [M]."""
        return self.batch["responses"].reshape(-1)[self._in_responses]

    @property
    def ids(self) -> Tensor:
        """All tokens, [N]."""
        return self.batch["input_ids"].reshape(-1)[self._in_input_ids]

    def hidden(self, backbone: Any) -> Tensor:
        """Last hidden states of all tokens, [N, H]."""
        ids = self.ids
        runner = getattr(backbone, "graph_runner", None)
        if runner is not None:
            out: Tensor = runner.hidden(backbone, ids, self)
            return out
        return hidden_states(backbone, ids[None], self.positions[None], self)

    def unpack(self, values: Tensor) -> Tensor:
        """[M, ...] of response tokens to [B, T, ...], 0 where there is no token."""
        rows, width = self.shape
        rest = values.shape[1:]
        flat = values.new_zeros(rows * width, *rest)
        return flat.index_put((self._in_responses,), values).view(rows, width, *rest)

    def of_rows(self, values: Tensor) -> Tensor:
        """Values of the rows, [B]."""
        return values


class ShardedBatch(PackedBatch):
    """The same on one of S ranks that share the tokens.

    `tokens`, `before` and `last` are those of this rank's share: m of M response tokens, and b of B
    rows. The output before a token may be the last of a share, and its token the first of the next
    one: every rank knows all tokens. What `unpack` and `of_rows` return is complete on every rank.
    """

    def __init__(self, batch: TokenBatch, group: SequenceGroup) -> None:
        super().__init__(batch)
        self.shard = TokenShard(self, group)
        self.before, self._chosen = self.shard.own(self._before)  # [m]
        self.last, self._rows = self.shard.own(self.ends - 1)  # [b]

    @property
    def tokens(self) -> Tensor:
        """The response tokens whose outputs this rank has, [m]."""
        return super().tokens[self._chosen]

    def hidden(self, backbone: Any) -> Tensor:
        """Last hidden states of this rank's tokens, [c, H]."""
        shard = self.shard
        ids = self.ids[shard.tokens]  # [c]
        return hidden_states(backbone, ids[None], shard.positions[None], shard)

    def unpack(self, values: Tensor) -> Tensor:
        """[m, ...] of this rank's response tokens to [B, T, ...] of all."""
        group = self.shard.group
        return super().unpack(group.complete(values, self._chosen, len(self._before)))

    def of_rows(self, values: Tensor) -> Tensor:
        """Values of the rows that end here, [b], to those of all, [B]."""
        return self.shard.group.complete(values, self._rows, len(self.lengths))


def _packed(model: Any, batch: TokenBatch) -> PackedBatch:
    """The batch without its padding: all of it, or this rank's share of its tokens."""
    group: SequenceGroup | None = getattr(model, "sequence_group", None)
    return PackedBatch(batch) if group is None else ShardedBatch(batch, group)


def _inputs(batch: TokenBatch) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
