"""A critic that reads the solution: V(s_t, solution). The policy never sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from telescope.batch import RowInfo, TokenBatch
from telescope.errors import TelescopeError
from telescope.ledger.writer import Notes
from telescope.roles.critic import Critic
from telescope.roles.protocols import CriticRole
from telescope.rollout.sampler import left_pad


class InformedCritic:
    """Puts a column of the data, e.g. a worked solution, before each prompt of the inner critic.

    The solution depends on the prompt alone, never on the response. So V is still a baseline: it
    leaves the expected gradient of the policy as it is. Only its variance falls, because V can see
    which step of a response is wrong. Pinto et al. 2018, arXiv:1710.06542.
    """

    def __init__(
        self, critic: CriticRole, column: str, tokenizer: Any, positions: int | None
    ) -> None:
        self.critic = critic
        self.column = column
        self.tokenizer = tokenizer
        self.positions = positions
        self._tokens: dict[str, list[int]] = {}
        """Token ids of the texts that were read before."""
        self._last: tuple[Tensor, dict[str, Tensor]] | None = None
        """`input_ids` of the last batch, and its columns with the texts: values and update share
        them."""

    def compute_values(self, batch: TokenBatch) -> TokenBatch:
        """Adds the inner critic's `values` and `bootstrap`. The prompts stay as they are."""
        informed = self.critic.compute_values(self.inform(batch))
        return batch.with_columns(values=informed["values"], bootstrap=informed["bootstrap"])

    def update_critic(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Updates the inner critic."""
        return self.critic.update_critic(self.inform(batch), ledger)

    def first_update_terms(self, batch: TokenBatch, ledger: Notes) -> None:
        """Notes in `ledger` the inner critic's loss terms of a first update on `batch`."""
        assert isinstance(self.critic, Critic)  # what asks for them runs in one process
        self.critic.first_update_terms(self.inform(batch), ledger)

    def training_flops(self, batch: TokenBatch) -> float:
        """Arithmetic operations of `update_critic`."""
        return self.critic.training_flops(self.inform(batch))

    def save(self, folder: Path) -> None:
        """Writes the inner critic."""
        self.critic.save(folder)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""
        self.critic.load(folder)

    def inform(self, batch: TokenBatch) -> TokenBatch:
        """The batch as the inner critic sees it: each prompt follows the row's text."""
        if self._last is None or self._last[0] is not batch["input_ids"]:
            self._last = (batch["input_ids"], self._informed_columns(batch))
        return batch.with_columns(**self._last[1])

    def _informed_columns(self, batch: TokenBatch) -> dict[str, Tensor]:
        prefixes = [self._ids(row) for row in batch.info]
        prompts = [
            prefix + prompt for prefix, prompt in zip(prefixes, batch.prompt_ids(), strict=True)
        ]
        self._check_lengths(prompts, batch)
        pad = self.tokenizer.pad_token_id
        ids, exists = left_pad(prompts, pad, batch["input_ids"].device)  # [B, P'] each
        width = batch["prompts"].shape[1]
        attention = torch.cat([exists, batch["attention_mask"][:, width:]], 1)  # [B, P'+T]
        return {
            "prompts": ids,
            "input_ids": torch.cat([ids, batch["input_ids"][:, width:]], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        }

    def _ids(self, row: RowInfo) -> list[int]:
        """Token ids of a row's text; none for a prompt that was typed, which has no columns."""
        if not row.data:
            return []
        text = f"{self._text(row)}\n\n"
        if text not in self._tokens:
            self._tokens[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._tokens[text]

    def _text(self, row: RowInfo) -> str:
        value: Any = row.data
        for name in self.column.split("."):
            if not isinstance(value, Mapping) or name not in value:
                columns = ", ".join(row.data)
                raise TelescopeError(
                    f"critic.reads = {self.column!r}: prompt {row.prompt_index + 1} has no such "
                    f"column; its columns are {columns} (a.b is b inside of a)"
                )
            value = value[name]
        if not isinstance(value, str | int | float):
            raise TelescopeError(
                f"critic.reads = {self.column!r}: prompt {row.prompt_index + 1} has "
                f"{type(value).__name__} there; name a column of texts or numbers"
            )
        return str(value)

    def _check_lengths(self, prompts: list[list[int]], batch: TokenBatch) -> None:
        """Refuses rows that are longer than the model's context."""
        if self.positions is None:
            return
        lengths = [
            len(prompt) + response
            for prompt, response in zip(prompts, batch.host("response"), strict=True)
        ]
        if max(lengths) > self.positions:
            raise TelescopeError(
                f"with critic.reads = {self.column!r} a prompt and its response have "
                f"{max(lengths)} tokens, more than the model's {self.positions} positions: "
                "lower data.max_prompt_tokens or rollout.max_response_tokens"
            )
