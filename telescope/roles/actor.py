"""The actor: the policy that writes the responses and is updated by policy gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from telescope.algorithms import (
    PolicyTerms,
    aggregate,
    entropy_weight,
    kl_penalty,
    prompt_shares,
    top_entropy,
)
from telescope.algorithms.definitions.policy import on_sampler
from telescope.algorithms.masked import keep
from telescope.batch import TokenBatch
from telescope.config import ActorConfig, Config
from telescope.data.loader import Prompts
from telescope.data.seeds import mix_seed
from telescope.ledger.writer import Note, Notes, ignore
from telescope.models.flops import cost_of
from telescope.models.forward import PolicyOutput, policy_forward
from telescope.models.load import is_packable
from telescope.models.parallel import Ranks, full_tensor
from telescope.models.quantize import quantized_layers
from telescope.roles.correction import (
    finish_mismatch,
    kept_tokens,
    loss_weights,
    measure_mismatch,
)
from telescope.roles.first_forward import FirstForward
from telescope.roles.learner import Denominators, Learner, map_policy
from telescope.roles.meter import Mean, Meter
from telescope.rollout.sampler import Sampler, sample_batch, with_greedy_responses
from telescope.rollout.tools import Tools


@dataclass(frozen=True)
class LossReport:
    """Where the loss of one minibatch reports what it saw, beside its gradient."""

    on_policy: bool
    """No optimizer step was taken since the rollout."""
    meter: Meter = field(default_factory=Meter)
    minibatch_kl: Mean = field(default_factory=Mean)
    """KL from π_old of this minibatch: `target_kl` ends the update by it."""
    note: Note = ignore


class Actor:
    """The policy in this process: it samples, computes log-probs and takes gradient steps."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        sampler: Sampler,
        config: Config,
        ranks: Ranks | None = None,
        tools: Tools | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.sampler = sampler
        self.tools = tools
        self.config = config
        self.ranks = ranks or Ranks()
        self.cost = cost_of(model)
        self.device: torch.device = model.device
        self.loss = config.actor  # its beta and entropy_coef may move
        self.skips_old = _can_skip_old_log_probs(config)
        self.learner = Learner(
            model,
            config.actor,
            total_updates=max(config.steps - config.critic_warmup, 1),
            seed=config.seed,
            padded=not is_packable(model),
            ranks=self.ranks,
        )
        self.forward = FirstForward(self._forward, self.learner, self.cost, config)
        for name in ("beta", "beta_given"):
            self.learner.kept[name] = torch.tensor(_beta(config.actor), dtype=torch.float64)

    @property
    def beta(self) -> float:
        """The coefficient β of the policy loss as it is now."""
        return _beta(self.loss)

    def generate_sequences(
        self, prompts: Prompts, *, upcoming: Prompts | None = None
    ) -> TokenBatch:
        """Adds responses, response_mask, truncated, rollout_log_probs and old_log_probs.

        `upcoming` is ignored: in one process there is nobody to answer those prompts meanwhile.
        """
        batch = self.with_old_log_probs(self.sample(prompts))
        if self.config.credit.definition.needs.greedy_baseline:
            return with_greedy_responses(batch, self.sample(prompts, greedy=True))
        return batch

    def with_old_log_probs(self, batch: TokenBatch) -> TokenBatch:
        """Adds old_log_probs, and what else an estimator needs of the policy.

        An update of a single minibatch computes them anyway, with the same weights. Then the
        sampler's own log-probs stand in until that forward. With several minibatches they may
        stand in for good: `actor.old_log_probs = "sampler"`.
        """
        if self.skips_old:
            old_log_probs = batch["rollout_log_probs"]
        elif (first := self._forward_ahead(batch)) is not None:
            old_log_probs = first.log_probs.detach()
        else:
            old_log_probs = self.compute_log_prob(batch)
        batch = batch.with_columns(old_log_probs=old_log_probs)
        if not self.config.credit.definition.needs.sum_pi_squared:
            return batch
        # π² normalised is the policy at half the temperature, so for any token a
        # log Σ_v π(v)² = 2·log π(a) − log π_half(a)
        half = self.compute_log_prob(batch, temperature=self.config.rollout.temperature / 2)
        return batch.with_columns(
            sum_pi_squared=(2 * batch["old_log_probs"] - half).exp().clamp(max=1.0)
        )

    def _forward_ahead(self, batch: TokenBatch) -> PolicyOutput | None:
        """The update's first forward, where the settings leave it open which one gives π_old."""
        is_open = self.config.actor.old_log_probs == "auto"
        return self.forward.ahead(batch) if is_open else None

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        """Responses alone: what evaluation needs."""
        self.sampler.load_weights(self.weights(), self.learner.updates)
        return sample_batch(
            self.sampler, prompts, self.tokenizer, self.device, greedy=greedy, tools=self.tools
        )

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """All weights by their names in Hugging Face files, with adapters merged.

        Sharded weights are gathered one by one, in `dtype` if it is given. Every rank must take
        part: it is a collective.
        """
        for name, value, adapter in self.stored_weights():
            if adapter is None:
                yield name, full_tensor(value.to(dtype or value.dtype))
            else:
                delta = full_tensor(adapter.get_delta_weight("default"))
                weight = full_tensor(value) + delta
                yield name, weight.to(dtype or weight.dtype)

    def stored_weights(self) -> Iterator[tuple[str, Tensor, Any]]:
        """Name, weight or this rank's shard of it, and the layer of its adapter or None.

        Tied weights come once.
        """
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        adapters = {
            f"{name}.base_layer.weight": module
            for name, module in self.model.named_modules()
            if hasattr(module, "lora_A")
        }
        for name, value in self.model.state_dict().items():
            if name not in tied and ".lora_" not in name:
                yield name.replace(".base_layer.", "."), value, adapters.get(name)
        for place, layer in quantized_layers(self.model):
            name = f"{place}.weight"
            yield name.replace(".base_layer.", "."), layer.full_weight(), adapters.get(name)

    def compute_log_prob(self, batch: TokenBatch, *, temperature: float | None = None) -> Tensor:
        """log π(a_t|s_t) of the current weights, [B, T], without a gradient.

        At the sampling temperature, unless another is given.
        """
        return map_policy(
            self.model,
            batch,
            self.config.actor.micro_batch_tokens,
            temperature=temperature or self.config.rollout.temperature,
            ranks=self.ranks,
        )

    def update_actor(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Takes epochs × minibatches policy-gradient steps on the whitened advantages.

        The ledger gets every token's terms.
        """
        config = self.config.actor
        if config.entropy_target is not None:
            self._adapt_entropy_coef(batch, config.entropy_target)
        meter = Meter(self.ranks)
        staleness = self.learner.updates - batch["policy_version"].float().mean()
        steps = 0
        for epoch, index, minibatch in self.learner.minibatches(batch):
            report = LossReport(
                on_policy=epoch == 0 and index == 0,
                meter=meter,
                minibatch_kl=Mean(self.ranks),
                note=ledger.note("actor", epoch, index) if ledger else ignore,
            )
            seed = mix_seed(self.config.seed, self.learner.updates, epoch, index)
            minibatch = self._prepared(minibatch, report, seed=seed)
            self.learner.backward(minibatch, partial(self._loss, report=report))
            meter.once("actor/pg_loss", 0.0)
            if config.target_kl is not None and report.minibatch_kl.value() > config.target_kl:
                self.learner.discard()
                break
            meter.once("actor/grad_norm", self.learner.step())
            steps += 1
        self.learner.check_gradients()
        metrics = meter.result()
        finish_mismatch(metrics)
        metrics["actor/updates"] = steps
        metrics["actor/lr"] = self.learner.optimizer.param_groups[0]["lr"]
        metrics["rollout/staleness"] = float(staleness)
        if config.entropy_target is not None:
            metrics["actor/entropy_coef"] = self.loss.entropy_coef
        adapt = config.definition.adapt
        if adapt is not None:
            metrics["actor/beta"] = self.beta
            self._set_beta(_beta(adapt(self.loss, metrics["actor/approx_kl"])))
        return metrics

    @torch.no_grad()
    def first_update_terms(self, batch: TokenBatch, ledger: Notes) -> None:
        """Notes in `ledger` the loss terms of a first update on `batch`, without taking it."""
        report = LossReport(on_policy=True, note=ledger.note("actor", 0, 0))
        self._loss(self._prepared(batch, report), Denominators.of(batch), report=report)

    def training_flops(self, batch: TokenBatch) -> float:
        """Arithmetic operations of `update_actor`."""
        return self.cost.training_flops(batch, self.config.actor.epochs)

    def save(self, folder: Path) -> None:
        """Writes weights, optimizer state and β."""
        self.learner.save(folder)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote. A β that was changed in the config replaces the saved one."""
        self.learner.load(folder)
        self.sampler.version = -1  # its weights are not the ones just loaded
        given = _beta(self.config.actor)
        kept = self.learner.kept
        adapts = getattr(self.config.actor, "beta_target", None) is not None
        unchanged = float(kept["beta_given"]) == given
        self._set_beta(float(kept["beta"]) if adapts and unchanged else given)
        kept["beta_given"].fill_(given)

    def _set_beta(self, beta: float) -> None:
        if hasattr(self.loss, "beta"):
            self.loss = self.loss.model_copy(update={"beta": beta})
        self.learner.kept["beta"].fill_(beta)

    def _adapt_entropy_coef(self, batch: TokenBatch, target: float) -> None:
        """Sets the weight of the entropy bonus in this update.

        It follows from the whole batch alone: the same on every rank, and after a resume.
        """
        weight = entropy_weight(
            batch["old_log_probs"], batch.mask, coef=self.config.actor.entropy_coef, target=target
        )
        self.loss = self.loss.model_copy(update={"entropy_coef": weight})

    def _prepared(self, minibatch: TokenBatch, report: LossReport, seed: int = 0) -> TokenBatch:
        """Drops rejected tokens, and marks those that the loss treats differently."""
        config = self.loss
        if config.rejects:
            kept = kept_tokens(minibatch, config)
            report.meter.tokens("actor/rejected", ~kept, minibatch.mask)
            if report.on_policy:  # over all tokens: the kept ones alone would hide the gap
                measure_mismatch(minibatch["old_log_probs"], minibatch, report.meter)
            minibatch = minibatch.only(kept)
        if config.top_entropy < 1:
            entropy = map_policy(
                self.model,
                minibatch,
                config.micro_batch_tokens,
                temperature=self.config.rollout.temperature,
                entropy=True,
                ranks=self.ranks,
            )
            chosen = top_entropy(entropy, minibatch.mask, share=config.top_entropy)
            minibatch = minibatch.with_columns(top_entropy=chosen)
        if config.aggregates == "prompt-mean":
            shares = prompt_shares(minibatch.mask, minibatch["group"])
            minibatch = minibatch.with_columns(prompt_share=shares)
        if config.definition.select is not None:
            new = self.compute_log_prob(minibatch)
            old = new if report.on_policy else minibatch["old_log_probs"]
            chosen = config.definition.call_select(
                new,
                old,
                minibatch["whitened"],
                minibatch.mask,
                settings=config,
                generator=torch.Generator().manual_seed(seed),
            )
            minibatch = minibatch.with_columns(selected=chosen)
        return minibatch

    def _forward(self, rows: TokenBatch) -> PolicyOutput:
        return policy_forward(
            self.model,
            rows,
            temperature=self.config.rollout.temperature,
            # of the config: `entropy_target` may set that of the loss to 0 and back
            entropy="gradient" if self.config.actor.entropy_coef else "value",
        )

    def _loss(self, rows: TokenBatch, over: Denominators, *, report: LossReport) -> Tensor:
        """The loss of a micro-batch, a sum divided by the counts of the whole minibatch."""
        config = self.loss
        mask = rows.mask
        meter = report.meter
        log_probs, entropy = self.forward(rows)
        # Before the first optimizer step π_old IS the policy. The ratio is then exactly 1, even
        # where another batch shape at rollout time changed the last bit of the log-probs.
        old_log_probs = log_probs.detach() if report.on_policy else rows["old_log_probs"]
        if report.on_policy and not config.rejects:
            measure_mismatch(old_log_probs, rows, meter)
        if on_sampler(config):
            old_log_probs = rows["rollout_log_probs"]
        tensors = [log_probs, old_log_probs, rows["whitened"], mask]
        if "selected" in rows:
            tensors.append(rows["selected"])
        terms: PolicyTerms = config.definition.call(*tensors, settings=config)
        weight = loss_weights(rows, log_probs, old_log_probs, config, meter)
        noted = {"log_probs": log_probs, "old_log_probs": old_log_probs, "entropy": entropy}
        self._note_terms(rows, report, noted, weight, terms)
        pg_loss = self._aggregate(terms.loss * weight, rows, over)
        loss = pg_loss
        if config.entropy_coef:
            loss = loss - config.entropy_coef * self._aggregate(entropy, rows, over)
        if config.kl_loss_coef:
            kl_to_ref = kl_penalty(keep(log_probs, mask), rows["ref_log_prob"], config.kl_loss_kind)
            loss = loss + config.kl_loss_coef * self._aggregate(kl_to_ref, rows, over)
            meter.tokens("actor/kl_loss", kl_to_ref, mask)
        k3 = (torch.expm1(terms.log_ratio) - terms.log_ratio).clamp(min=0)
        report.minibatch_kl.tokens(k3, mask)
        meter.add("actor/pg_loss", pg_loss)
        meter.tokens("actor/pg_clipfrac", terms.clipped, mask)
        meter.tokens("actor/pg_clipfrac_lower", terms.dual_clipped, mask)
        meter.tokens("actor/entropy", entropy, mask)
        meter.tokens("actor/approx_kl", k3, mask)
        meter.tokens("actor/ppo_kl", old_log_probs - log_probs, mask)  # not clamped
        return loss

    def _note_terms(
        self,
        rows: TokenBatch,
        report: LossReport,
        noted: Mapping[str, Tensor],
        weight: Tensor,
        terms: PolicyTerms,
    ) -> None:
        """Gives the ledger what the loss computed of every token."""
        recorded = {**noted, **vars(terms)}
        if self.loss.weighs:
            recorded["weight"] = weight
        for name in ("selected", "top_entropy"):
            if name in rows:
                recorded[name] = rows[name]
        report.note(rows, recorded)

    def _aggregate(self, loss: Tensor, rows: TokenBatch, over: Denominators) -> Tensor:
        by_prompt = self.loss.aggregates == "prompt-mean"
        shares = rows["prompt_share"] if by_prompt else None
        return aggregate(
            loss,
            rows.mask,
            self.loss.aggregates,
            num_tokens=over.num_tokens,
            num_rows=over.num_rows,
            horizon=self.config.rollout.max_response_tokens,
            row_shares=shares,
        )


def _can_skip_old_log_probs(config: Config) -> bool:
    """Whether the update's only forward is by the policy that wrote the responses.

    Then it gives π_old, and a forward of its own would compute the same numbers. Also where the
    sampler's log-probs were chosen instead.
    """
    actor = config.actor
    if actor.old_log_probs == "sampler":
        return True
    one_forward = actor.epochs == actor.minibatches == 1
    needs_old_before = actor.rejects or config.credit.definition.needs.sum_pi_squared
    same_policy = not config.rollout.one_step_off_policy
    return actor.old_log_probs == "auto" and one_forward and same_policy and not needs_old_before


def _beta(config: ActorConfig) -> float:
    """The weight of the loss's own penalty, where it has one."""
    return float(getattr(config, "beta", 1.0))
