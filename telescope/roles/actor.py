"""The policy: it writes the responses, and is updated by the clipped surrogate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from telescope.algorithms import (
    PolicyTerms,
    adapt_penalty,
    aggregate,
    cispo_loss,
    clip_cov_loss,
    clipped_policy_loss,
    dppo_loss,
    dro_loss,
    geo_mean_loss,
    gspo_loss,
    importance_weights,
    kept_by_ratio,
    kl_cov_loss,
    kl_penalty,
    kl_penalty_loss,
    sapo_loss,
    select_clip_cov,
    select_kl_cov,
    surrogate_loss,
)
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
from telescope.roles.learner import Denominators, Learner, map_rows
from telescope.roles.meter import Meter
from telescope.rollout.sampler import Sampler, sample_batch, with_baseline
from telescope.rollout.tools import Tools

PolicyLoss = Callable[[Tensor, Tensor, TokenBatch, ActorConfig], PolicyTerms]
"""(log_probs, old_log_probs, rows with the whitened advantages, config) -> per-token terms, all [B, T]."""


def _with(loss: Callable[..., PolicyTerms], *settings: str) -> PolicyLoss:
    """A pure loss as one of the trainer's: these settings are its keywords."""

    def policy_loss(new: Tensor, old: Tensor, rows: TokenBatch, config: ActorConfig) -> PolicyTerms:
        selected = (rows["selected"],) if "selected" in rows else ()
        return loss(
            new,
            old,
            rows["whitened"],
            rows.mask,
            *selected,
            **{name: getattr(config, name) for name in settings},
        )

    return policy_loss


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "clip": _with(clipped_policy_loss, "clip_low", "clip_high", "dual_clip"),
    "cpi": _with(surrogate_loss),
    "kl_penalty": _with(kl_penalty_loss, "beta"),
    "gspo": _with(gspo_loss, "clip_low", "clip_high"),
    "cispo": _with(cispo_loss, "clip_low", "clip_high"),
    "sapo": _with(sapo_loss, "tau_positive", "tau_negative"),
    "geo_mean": _with(geo_mean_loss, "clip_low", "clip_high"),
    "clip_cov": _with(clip_cov_loss, "clip_low", "clip_high"),
    "kl_cov": _with(kl_cov_loss, "beta"),
    "dppo_tv": _with(partial(dppo_loss, divergence="tv"), "clip_low", "clip_high", "ratio_cap"),
    "dppo_kl": _with(partial(dppo_loss, divergence="kl"), "clip_low", "clip_high", "ratio_cap"),
    "dro": _with(dro_loss, "beta"),
}

BY_ROW = ("gspo", "geo_mean", "sapo")
"""Losses whose papers take the mean over responses."""


def _select_clip_cov(
    new: Tensor, old: Tensor, rows: TokenBatch, config: ActorConfig, generator: torch.Generator
) -> Tensor:
    bounds = {
        "low": config.cov_low,
        "high": config.cov_high,
        "clip_low": config.clip_low,
        "clip_high": config.clip_high,
    }
    return select_clip_cov(
        new, old, rows["whitened"], rows.mask, share=config.cov_share, **bounds, generator=generator
    )


def _select_kl_cov(
    new: Tensor, old: Tensor, rows: TokenBatch, config: ActorConfig, generator: torch.Generator
) -> Tensor:
    return select_kl_cov(new, rows["whitened"], rows.mask, share=config.cov_share)


SELECTIONS: dict[
    str, Callable[[Tensor, Tensor, TokenBatch, ActorConfig, torch.Generator], Tensor]
] = {
    "clip_cov": _select_clip_cov,
    "kl_cov": _select_kl_cov,
}
"""Losses that compare the tokens of a minibatch: it goes through a forward of its own first, so that its split changes nothing."""


class Actor:
    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        sampler: Sampler,
        config: Config,
        ranks: Ranks | None = None,
        tools: Tools | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.model, self.tokenizer, self.sampler, self.tools, self.config = (
            model,
            tokenizer,
            sampler,
            tools,
            config,
        )
        self.cost, self.device = cost_of(model), model.device
        self.padded = not is_packable(model)
        self.loss = config.actor  # its beta may move
        single = config.actor.epochs == config.actor.minibatches == 1
        on_policy = (
            single and config.actor.reject == "off" and not config.rollout.one_step_off_policy
        )
        on_policy = (
            on_policy and config.credit.estimator != "optimal_token_baseline"
        )  # which compares two forwards
        self.skips_old = config.actor.old_log_probs == "auto" and on_policy
        updates = max(config.steps - config.critic_warmup, 1)
        self.learner = Learner(
            model,
            config.actor,
            total_updates=updates,
            seed=config.seed,
            padded=self.padded,
            ranks=self.ranks,
        )
        self.learner.kept |= {
            name: torch.tensor(config.actor.beta, dtype=torch.float64)
            for name in ("beta", "beta_given")
        }

    def generate_sequences(
        self, prompts: Prompts, *, upcoming: Prompts | None = None, greedy: bool = False
    ) -> TokenBatch:
        """Adds responses, response_mask, truncated, rollout_log_probs, and old_log_probs from the training forward.

        An update of a single minibatch makes that forward anyway, with the same weights: then π_old is taken from there, and
        until then the sampler's own log-probs stand in.
        """
        batch = self.with_old_log_probs(self.sample(prompts, greedy=greedy))
        return (
            with_baseline(batch, self.sample(prompts, greedy=True))
            if self.config.credit.estimator == "remax"
            else batch
        )

    def with_old_log_probs(self, batch: TokenBatch) -> TokenBatch:
        """Adds old_log_probs, and what else an estimator needs of the policy."""
        batch = batch.with_columns(
            old_log_probs=batch["rollout_log_probs"]
            if self.skips_old
            else self.compute_log_prob(batch)
        )
        if self.config.credit.estimator != "optimal_token_baseline":
            return batch
        # Σ_v π(v)² is what normalises π², the policy at half the temperature: log Σ π² = 2·log π(a) − log π½(a) for any token a
        half = self.compute_log_prob(batch, temperature=self.config.rollout.temperature / 2)
        return batch.with_columns(
            sum_pi_squared=(2 * batch["old_log_probs"] - half).exp().clamp(max=1.0)
        )

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        """The responses alone: what evaluation needs."""
        self.sampler.load_weights(self.weights(), self.learner.updates)
        return sample_batch(
            self.sampler, prompts, self.tokenizer, self.device, greedy=greedy, tools=self.tools
        )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights by their names in Hugging Face files, adapters merged; put together one by one where sliced: a meeting of all."""
        for name, value, layer in self.stored_weights():
            yield (
                name,
                full_tensor(value)
                if layer is None
                else full_tensor(value) + full_tensor(layer.get_delta_weight("default")),
            )

    def stored_weights(self) -> Iterator[tuple[str, Tensor, Any]]:
        """Name, weight as it is held here (tied ones stand once), and the layer of its adapter if it has one."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        layers = {
            f"{name}.base_layer.weight": m
            for name, m in self.model.named_modules()
            if hasattr(m, "lora_A")
        }
        for name, value in self.model.state_dict().items():
            if name not in tied and ".lora_" not in name:
                yield name.replace(".base_layer.", "."), value, layers.get(name)

    def compute_log_prob(self, batch: TokenBatch, *, temperature: float | None = None) -> Tensor:
        """log π(a_t|s_t) of the current weights, [B, T], no gradient; at the sampling temperature unless another is given."""

        def forward(rows: TokenBatch) -> tuple[Tensor]:
            return (
                policy_forward(
                    self.model, rows, temperature=temperature or self.config.rollout.temperature
                ).log_probs,
            )

        (log_probs,) = map_rows(
            batch,
            self.config.actor.micro_batch_tokens,
            forward,
            padded=self.padded,
            ranks=self.ranks,
        )
        return log_probs

    def update_actor(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Epochs × minibatches of policy gradient steps on the whitened advantages; the ledger gets every token's terms."""
        config, meter = self.config.actor, Meter(self.ranks)
        steps, staleness = 0, self.learner.updates - batch["policy_version"].float().mean()
        for epoch, index, minibatch in self.learner.minibatches(batch):
            on_policy = epoch == 0 and index == 0
            kl, note = Meter(self.ranks), ledger.note("actor", epoch, index) if ledger else ignore
            minibatch = self._prepared(
                minibatch,
                on_policy,
                meter,
                seed=mix_seed(self.config.seed, self.learner.updates, epoch, index),
            )
            loss = partial(self._loss, on_policy=on_policy, meter=meter, kl=kl, note=note)
            self.learner.backward(minibatch, loss)
            meter.once("actor/pg_loss", 0.0)
            if config.target_kl is not None and kl.result()["approx_kl"] > config.target_kl:
                self.learner.discard()
                break
            meter.once("actor/grad_norm", self.learner.step())
            steps += 1
        result = meter.result() | {
            "actor/updates": steps,
            "actor/lr": self.learner.optimizer.param_groups[0]["lr"],
        }
        result["rollout/staleness"] = float(staleness)
        if config.loss == "kl_penalty":
            result["actor/beta"] = self.loss.beta
            if config.beta_target is not None:
                self._set_beta(
                    adapt_penalty(
                        self.loss.beta, result["actor/approx_kl"], target=config.beta_target
                    )
                )
        return result

    def training_flops(self, batch: TokenBatch) -> float:
        """What `update_actor` has to compute."""
        return self.cost.training_flops(batch, self.config.actor.epochs)

    def save(self, folder: Path) -> None:
        self.learner.save(folder)

    def load(self, folder: Path) -> None:
        self.learner.load(folder)
        self.sampler.version = -1  # whatever it has, it is not these
        given, kept = self.config.actor.beta, self.learner.kept
        goes_on = (
            self.config.actor.beta_target is not None and float(kept["beta_given"]) == given
        )  # else the new one counts
        self._set_beta(float(kept["beta"]) if goes_on else given)
        kept["beta_given"].fill_(given)

    def _set_beta(self, beta: float) -> None:
        self.loss = self.loss.model_copy(update={"beta": beta})
        self.learner.kept["beta"].fill_(beta)

    def _prepared(
        self, minibatch: TokenBatch, on_policy: bool, meter: Meter, seed: int = 0
    ) -> TokenBatch:
        """The minibatch without the tokens that are rejected, and with those that a loss treats apart marked."""
        config = self.loss
        if config.reject != "off":
            ratio = minibatch["old_log_probs"], minibatch["rollout_log_probs"], minibatch.mask
            kept = kept_by_ratio(
                *ratio, level=config.reject, low=config.reject_low, high=config.reject_high
            )
            meter.tokens("actor/rejected", ~kept, minibatch.mask)
            if on_policy:  # of all tokens: those that are kept would make the gap look small
                meter.tokens("rollout/logprob_diff", (ratio[1] - ratio[0]).abs(), minibatch.mask)
            minibatch = minibatch.only(kept)
        if config.loss in SELECTIONS:
            new = self.compute_log_prob(minibatch)
            old = new if on_policy else minibatch["old_log_probs"]
            chosen = SELECTIONS[config.loss](
                new, old, minibatch, config, torch.Generator().manual_seed(seed)
            )
            minibatch = minibatch.with_columns(selected=chosen)
        return minibatch

    def _loss(
        self,
        rows: TokenBatch,
        over: Denominators,
        on_policy: bool,
        meter: Meter,
        kl: Meter,
        note: Note = ignore,
    ) -> Tensor:
        config, mask = self.loss, rows.mask
        log_probs, entropy = self._forward(
            rows, entropy="gradient" if config.entropy_coef else "value"
        )
        # Before the first optimizer step π_old IS the policy: the ratio is then exactly 1, whatever the batch shape did
        # to the last bit of the log-probs computed at rollout time.
        old_log_probs = log_probs.detach() if on_policy else rows["old_log_probs"]
        terms = POLICY_LOSSES[config.loss](log_probs, old_log_probs, rows, config)
        recorded = {"log_probs": log_probs, "old_log_probs": old_log_probs, **vars(terms)}
        weight = mask.to(log_probs.dtype)
        if config.importance != "off":
            given = old_log_probs, rows["rollout_log_probs"], mask
            weight = importance_weights(*given, level=config.importance, cap=config.importance_cap)
            meter.tokens("actor/importance", weight, mask)
        if config.importance != "off" or config.reject != "off":
            recorded["weight"] = weight
        if "selected" in rows:
            recorded["selected"] = rows["selected"]
        note(rows, recorded)
        if on_policy and config.reject == "off":
            meter.tokens(
                "rollout/logprob_diff", (rows["rollout_log_probs"] - log_probs).abs(), mask
            )
        pg_loss = self._aggregate(terms.loss * weight, mask, over)
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

    def _forward(
        self, rows: TokenBatch, *, entropy: Literal["none", "value", "gradient"] = "none"
    ) -> PolicyOutput:
        return policy_forward(
            self.model, rows, temperature=self.config.rollout.temperature, entropy=entropy
        )

    def _aggregate(self, loss: Tensor, mask: Tensor, over: Denominators) -> Tensor:
        mode = self.loss.aggregation
        return aggregate(
            loss,
            mask,
            mode
            if mode != "auto"
            else "seq-mean-token-mean"
            if self.loss.loss in BY_ROW
            else "token-mean",
            num_tokens=over.num_tokens,
            num_rows=over.num_rows,
            horizon=self.config.rollout.max_response_tokens,
        )
