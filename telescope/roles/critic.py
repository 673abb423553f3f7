"""The critic: V(s_t) before every token; zeros for estimators that need no values."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from telescope.algorithms import ValueTerms, aggregate
from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.ledger.writer import Note, Notes, ignore
from telescope.models import shards
from telescope.models.flops import cost_of
from telescope.models.forward import ValueOutput, value_forward
from telescope.models.load import is_packable
from telescope.models.parallel import Ranks
from telescope.models.value import ValueModel
from telescope.roles.first_forward import FirstForward
from telescope.roles.learner import Denominators, Learner, map_rows
from telescope.roles.meter import Meter


class Critic:
    """The value model in this process: it computes values and regresses them on the returns."""

    def __init__(self, model: ValueModel, config: Config, ranks: Ranks | None = None) -> None:
        self.model = model
        self.config = config
        self.ranks = ranks or Ranks()
        self.cost = cost_of(model)
        self.padded = not is_packable(model.backbone)
        self.learner = Learner(
            model,
            config.critic,
            total_updates=config.steps,
            seed=config.seed + 1,
            padded=self.padded,
            ranks=self.ranks,
        )
        self.forward = FirstForward(self._forward, self.learner, self.cost, config)

    def compute_values(self, batch: TokenBatch) -> TokenBatch:
        """Adds `values`, and `bootstrap`: V of the last state of a response that was cut off.

        Without `credit.bootstrap_truncated` the bootstrap is 0 everywhere.
        """
        values, final = self._values(batch)
        if self.config.credit.bootstrap_truncated:
            bootstrap = final.masked_fill(~batch["truncated"], 0.0)
        else:
            bootstrap = torch.zeros_like(final)
        return batch.with_columns(values=values, bootstrap=bootstrap)

    def update_critic(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Takes epochs × minibatches steps of `critic.loss` against the returns.

        The returns stay fixed. The ledger gets every token's terms.
        """
        meter = Meter(self.ranks)
        for epoch, index, minibatch in self.learner.minibatches(batch):
            note = ledger.note("critic", epoch, index) if ledger else ignore
            self.learner.backward(minibatch, partial(self._loss, meter=meter, note=note))
            meter.once("critic/grad_norm", self.learner.step())
            meter.once("critic/vf_loss", 0.0)
        self.learner.check_gradients()
        return meter.result() | {"critic/lr": self.learner.optimizer.param_groups[0]["lr"]}

    @torch.no_grad()
    def first_update_terms(self, batch: TokenBatch, ledger: Notes) -> None:
        """Notes in `ledger` the loss terms of a first update on `batch`, without taking it."""
        note = ledger.note("critic", 0, 0)
        self._loss(batch, Denominators.of(batch), meter=Meter(), note=note)

    def training_flops(self, batch: TokenBatch) -> float:
        """Arithmetic operations of `update_critic`."""
        return self.cost.training_flops(batch, self.config.critic.epochs)

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer state."""
        self.learner.save(folder)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""
        self.learner.load(folder)

    def _values(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """V before every token, [B, T], and after the last, [B], without a gradient."""
        first = self.forward.ahead(batch)
        if first is not None:
            return first.values.detach(), first.final.detach()

        def forward(rows: TokenBatch) -> tuple[Tensor, ...]:
            return self._forward(rows)[:2]

        budget = self.config.critic.micro_batch_tokens
        values, final = map_rows(batch, budget, forward, padded=self.padded, ranks=self.ranks)
        return values, final

    def _forward(self, rows: TokenBatch) -> ValueOutput:
        return value_forward(self.model, rows)

    def _loss(self, rows: TokenBatch, over: Denominators, *, meter: Meter, note: Note) -> Tensor:
        """The loss of a micro-batch, a sum divided by the counts of the whole minibatch."""
        out = self.forward(rows)
        config = self.config.critic
        terms: ValueTerms = config.definition.implementation()(out, rows, config)
        recorded = {name: term for name, term in vars(terms).items() if term is not None}
        note(rows, {"values": out.values, **recorded})
        loss = aggregate(terms.loss, rows.mask, "token-mean", num_tokens=over.num_tokens)
        meter.add("critic/vf_loss", loss)
        meter.tokens("critic/vf_clipfrac", terms.clipped, rows.mask)
        meter.tokens("critic/vpred_mean", out.values, rows.mask)
        bins = config.histogram
        if bins is not None:
            returns = rows["returns"]
            outside = (returns < bins.low) | (returns > bins.high)
            meter.tokens("critic/out_of_range", outside, rows.mask)
        return loss


class ZeroCritic:
    """The critic of an estimator that needs none: V is 0 everywhere, and there is no model."""

    def compute_values(self, batch: TokenBatch) -> TokenBatch:
        """Adds values and bootstrap of 0."""
        zeros = torch.zeros_like(batch["rollout_log_probs"], dtype=torch.float32)
        return batch.with_columns(values=zeros, bootstrap=zeros.new_zeros(len(batch)))

    def update_critic(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Does nothing."""
        return {}

    def first_update_terms(self, batch: TokenBatch, ledger: Notes) -> None:
        """Notes nothing: there is no loss."""

    def training_flops(self, batch: TokenBatch) -> float:
        """0: there is nothing to compute."""
        return 0.0

    def save(self, folder: Path) -> None:
        """Writes an empty state, so that every checkpoint has the same files."""
        shards.save(folder, {"updates": torch.tensor(0)})

    def load(self, folder: Path) -> None:
        """Does nothing."""
