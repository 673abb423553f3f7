"""The policy: it writes the responses, and is updated by the clipped surrogate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from telescope.algorithms import PolicyTerms, aggregate, clipped_policy_loss, importance_weights, kl_penalty, surrogate_loss
from telescope.algorithms.masked import keep
from telescope.batch import TokenBatch
from telescope.config import ActorConfig, Config
from telescope.ledger.writer import Note, Notes, ignore
from telescope.metrics import Meter
from telescope.models.forward import PolicyOutput, policy_forward
from telescope.models.load import is_packable
from telescope.models.parallel import Ranks, whole_tensor
from telescope.perf import cost_of
from telescope.roles.learner import Denominators, Learner, map_rows
from telescope.rollout.sampler import Sampler, sample_batch
from telescope.tasks import Prompts

PolicyLoss = Callable[[Tensor, Tensor, Tensor, Tensor, ActorConfig], PolicyTerms]
"""(log_probs, old_log_probs, advantages, mask, config) -> per-token terms, all [B, T]."""


def _clip(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, config: ActorConfig) -> PolicyTerms:
    return clipped_policy_loss(
        log_probs, old_log_probs, advantages, mask, clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip
    )


def _cpi(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, config: ActorConfig) -> PolicyTerms:
    return surrogate_loss(log_probs, old_log_probs, advantages, mask)


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "clip": _clip,
    "cpi": _cpi,
}


class Actor:
    def __init__(self, model: Any, tokenizer: Any, sampler: Sampler, config: Config, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self.model, self.tokenizer, self.sampler, self.config = model, tokenizer, sampler, config
        self.cost, self.device = cost_of(model), model.device
        self.padded = not is_packable(model)
        single = config.actor.epochs == config.actor.minibatches == 1
        self.skips_old = config.actor.old_log_probs == "auto" and single and not config.rollout.ahead
        updates = max(config.steps - config.critic.head_start, 1)
        self.learner = Learner(model, config.actor, total_updates=updates, seed=config.seed, padded=self.padded, ranks=self.ranks)

    def generate_sequences(self, prompts: Prompts, *, upcoming: Prompts | None = None, greedy: bool = False) -> TokenBatch:
        """Adds responses, response_mask, truncated, rollout_log_probs, and old_log_probs from the training forward.

        An update of a single minibatch makes that forward anyway, with the same weights: then π_old is taken from there, and
        until then the sampler's own log-probs stand in.
        """
        return self.with_old_log_probs(self.sample(prompts, greedy=greedy))

    def with_old_log_probs(self, batch: TokenBatch) -> TokenBatch:
        return batch.with_columns(old_log_probs=batch["rollout_log_probs"] if self.skips_old else self.compute_log_prob(batch))

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        """The responses alone: what evaluation needs."""
        self.sampler.load_weights(self.weights(), self.learner.updates)
        return sample_batch(self.sampler, prompts, self.tokenizer, self.device, greedy=greedy)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights by their names in Hugging Face files, adapters merged; put together one by one where sliced: a meeting of all."""
        for name, value, layer in self.stored_weights():
            yield name, whole_tensor(value) if layer is None else whole_tensor(value) + whole_tensor(layer.get_delta_weight("default"))

    def stored_weights(self) -> Iterator[tuple[str, Tensor, Any]]:
        """Name, weight as it is held here (tied ones stand once), and the layer of its adapter if it has one."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        layers = {f"{name}.base_layer.weight": m for name, m in self.model.named_modules() if hasattr(m, "lora_A")}
        for name, value in self.model.state_dict().items():
            if name not in tied and ".lora_" not in name:
                yield name.replace(".base_layer.", "."), value, layers.get(name)

    def compute_log_prob(self, batch: TokenBatch) -> Tensor:
        """log π(a_t|s_t) of the current weights, [B, T], no gradient."""
        budget = self.config.actor.micro_batch_tokens
        (log_probs,) = map_rows(batch, budget, lambda rows: (self._forward(rows).log_probs,), padded=self.padded, ranks=self.ranks)
        return log_probs

    def update_actor(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Epochs × minibatches of policy gradient steps on the whitened advantages; the ledger gets every token's terms."""
        config, meter = self.config.actor, Meter(self.ranks)
        steps, staleness = 0, self.learner.updates - batch["policy_version"].float().mean()
        for epoch, index, minibatch in self.learner.minibatches(batch):
            on_policy = epoch == 0 and index == 0
            kl, note = Meter(self.ranks), ledger.note("actor", epoch, index) if ledger else ignore
            self.learner.backward(minibatch, lambda rows, over: self._loss(rows, over, on_policy, meter, kl, note))  # noqa: B023
            meter.once("actor/pg_loss", 0.0)
            if config.target_kl is not None and kl.result()["approx_kl"] > config.target_kl:
                self.learner.discard()
                break
            meter.once("actor/grad_norm", self.learner.step())
            steps += 1
        return meter.result() | {
            "actor/updates": steps,
            "actor/lr": self.learner.optimizer.param_groups[0]["lr"],
            "rollout/staleness": float(staleness),
        }

    def training_flops(self, batch: TokenBatch) -> float:
        """What `update_actor` has to compute."""
        return self.cost.training_flops(batch, self.config.actor.epochs)

    def save(self, folder: Path) -> None:
        self.learner.save(folder)

    def load(self, folder: Path) -> None:
        self.learner.load(folder)
        self.sampler.version = -1  # whatever it has, it is not these

    def _loss(self, rows: TokenBatch, over: Denominators, on_policy: bool, meter: Meter, kl: Meter, note: Note = ignore) -> Tensor:
        config, mask = self.config.actor, rows.mask
        log_probs, entropy = self._forward(rows, entropy="gradient" if config.entropy_coef else "value")
        # Before the first optimizer step π_old IS the policy: the ratio is then exactly 1, whatever the batch shape did
        # to the last bit of the log-probs computed at rollout time.
        old_log_probs = log_probs.detach() if on_policy else rows["old_log_probs"]
        terms = POLICY_LOSSES[config.loss](log_probs, old_log_probs, rows["whitened"], mask, config)
        note(rows, {"log_probs": log_probs, "old_log_probs": old_log_probs, **vars(terms)})
        if on_policy:
            meter.tokens("rollout/logprob_diff", (rows["rollout_log_probs"] - log_probs).abs(), mask)
        token_loss = terms.loss
        if config.importance != "off":
            token_loss = token_loss * importance_weights(
                old_log_probs, rows["rollout_log_probs"], mask, level=config.importance, cap=config.importance_cap
            )
        pg_loss = self._aggregate(token_loss, mask, over)
        loss = pg_loss
        if config.entropy_coef:
            loss = loss - config.entropy_coef * self._aggregate(entropy, mask, over)
        if config.kl_loss_coef:
            kl_to_ref = kl_penalty(keep(log_probs, mask), rows["ref_log_prob"], config.kl_loss_kind)
            loss = loss + config.kl_loss_coef * self._aggregate(kl_to_ref, mask, over)
            meter.tokens("actor/kl_loss", kl_to_ref, mask)
        k3 = (torch.expm1(terms.log_ratio) - terms.log_ratio).clamp(min=0)
        kl.tokens("approx_kl", k3, mask)
        meter.add("actor/pg_loss", pg_loss)
        for name, value in {
            "pg_clipfrac": terms.clipped,
            "pg_clipfrac_lower": terms.dual_clipped,
            "entropy": entropy,
            "approx_kl": k3,
            "ppo_kl": -terms.log_ratio,
        }.items():
            meter.tokens(f"actor/{name}", value, mask)
        return loss

    def _forward(self, rows: TokenBatch, *, entropy: Literal["none", "value", "gradient"] = "none") -> PolicyOutput:
        return policy_forward(self.model, rows, temperature=self.config.rollout.temperature, entropy=entropy)

    def _aggregate(self, loss: Tensor, mask: Tensor, over: Denominators) -> Tensor:
        return aggregate(
            loss,
            mask,
            self.config.actor.aggregation,
            num_tokens=over.num_tokens,
            num_rows=over.num_rows,
            horizon=self.config.rollout.max_response_tokens,
        )
