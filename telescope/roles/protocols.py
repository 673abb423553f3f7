"""Actor, critic and reference as the trainer sees them.

A role in this process and a role on Ray have the same methods, so the loop never asks which one it
has. `telescope.build` puts them together, with the one kind of reward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from telescope.batch import TokenBatch
from telescope.data.loader import Prompts
from telescope.ledger.writer import Notes
from telescope.models.flops import Cost


class Trained(Protocol):
    """What actor and critic have in common: they are saved, loaded and timed alike."""

    def save(self, folder: Path) -> None:
        """Writes everything that training changes into `folder`."""

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""

    def training_flops(self, batch: TokenBatch) -> float:
        """Arithmetic operations of one update on `batch`; NaN where they are not known."""


class ActorRole(Trained, Protocol):
    """The policy: it writes responses and is updated."""

    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Where the batch lives between the stages."""

    @property
    def cost(self) -> Cost | None:
        """The model's size; None where this process does not hold the model."""

    @property
    def beta(self) -> float:
        """The coefficient β of the policy loss now. It moves if `actor.beta_target` is set."""

    def generate_sequences(
        self, prompts: Prompts, *, upcoming: Prompts | None = None
    ) -> TokenBatch:
        """Stage 1: responses to `prompts`, with everything the update needs from the policy.

        `upcoming` are the prompts of the next step. An actor with samplers of its own starts to
        answer them now, with the policy as it is.
        """

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        """Responses alone: what evaluation needs."""

    def update_actor(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Stage 3: updates the policy and returns metrics; `ledger` gets every token's terms."""


class CriticRole(Trained, Protocol):
    """The critic: values, and their update."""

    def compute_values(self, batch: TokenBatch) -> TokenBatch:
        """Stage 2: adds `values` and `bootstrap`."""

    def update_critic(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Stage 3: updates the critic and returns metrics; `ledger` gets every token's terms."""


class ReferenceRole(Protocol):
    """The frozen policy that KL is measured against."""

    def compute_log_prob(self, batch: TokenBatch) -> TokenBatch:
        """Stage 2: adds `ref_log_prob`."""
