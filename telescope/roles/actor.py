"""The policy: it writes the responses, and is updated by the clipped surrogate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from telescope.algorithms import PolicyTerms, aggregate, clipped_policy_loss, importance_weights, kl_penalty, surrogate_loss
from telescope.algorithms.masked import keep
from telescope.batch import TokenBatch
from telescope.config import ActorConfig, Config
from telescope.ledger.writer import Note, Notes, ignore
from telescope.metrics import Meter
from telescope.models.forward import PolicyOutput, policy_forward
from telescope.models.load import is_packable, quiet
from telescope.models.lora import adapted, read_adapters, save_adapters
from telescope.models.parallel import Ranks, full_state, load_full_state
from telescope.perf import cost_of
from telescope.roles.learner import Denominators, Learner, map_rows
from telescope.rollout.sampler import Sampler
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
        self.skips_old = config.actor.old_log_probs == "auto" and config.actor.epochs == config.actor.minibatches == 1
        updates = max(config.steps - config.critic.head_start, 1)
        self.learner = Learner(model, config.actor, total_updates=updates, seed=config.seed, padded=self.padded, ranks=self.ranks)

    def generate_sequences(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        """Adds responses, response_mask, truncated, rollout_log_probs, and old_log_probs from the training forward.

        An update of a single minibatch makes that forward anyway, with the same weights: then π_old is taken from there, and
        until then the sampler's own log-probs stand in.
        """
        batch = self.sample(prompts, greedy=greedy)
        return batch.with_columns(old_log_probs=batch["rollout_log_probs"] if self.skips_old else self.compute_log_prob(batch))

    def sample(self, prompts: Prompts, *, greedy: bool = False) -> TokenBatch:
        """The responses alone: what evaluation needs."""
        input_ids, attention_mask = left_pad(prompts.ids, self.tokenizer.pad_token_id, self.model.device)
        out = self.sampler.generate(input_ids, attention_mask, seed=prompts.seed, greedy=greedy, rows=prompts.rows)
        # the mask comes from the lengths, not from comparing ids: pad may be the same token as EOS
        written = torch.arange(out.responses.shape[1], device=out.lengths.device) < out.lengths[:, None]  # [B, T]
        attention = torch.cat([attention_mask, written.long()], 1)  # [B, P+T]
        responses = [row[:n] for row, n in zip(out.responses.tolist(), out.lengths.tolist(), strict=True)]
        return TokenBatch(
            {
                "prompts": input_ids,
                "input_ids": torch.cat([input_ids, out.responses], 1),
                "attention_mask": attention,
                "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
                "responses": out.responses,
                "sample": torch.tensor(list(prompts.rows or range(len(responses))), device=input_ids.device),
                "response_mask": written.long(),
                "truncated": out.truncated,
                "rollout_log_probs": out.log_probs,
            },
            {**prompts.info, "response": self.tokenizer.batch_decode(responses, skip_special_tokens=True), "response_ids": responses},
        )

    def compute_log_prob(self, batch: TokenBatch) -> Tensor:
        """log π(a_t|s_t) of the current weights, [B, T], no gradient."""
        budget = self.config.actor.micro_batch_tokens
        (log_probs,) = map_rows(batch, budget, lambda rows: (self._forward(rows).log_probs,), padded=self.padded, ranks=self.ranks)
        return log_probs

    def update_actor(self, batch: TokenBatch, ledger: Notes | None = None) -> dict[str, float]:
        """Epochs × minibatches of policy gradient steps on the whitened advantages; the ledger gets every token's terms."""
        config, meter = self.config.actor, Meter(self.ranks)
        steps = 0
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
        return meter.result() | {"actor/updates": steps, "actor/lr": self.learner.optimizer.param_groups[0]["lr"]}

    def training_flops(self, batch: TokenBatch) -> float:
        """What `update_actor` has to compute."""
        return self.cost.training_flops(batch, self.config.actor.epochs)

    def save(self, folder: Path) -> None:
        """A Hugging Face folder; with LoRA one of the adapters alone."""
        weights = full_state(self.model)
        if self.ranks.rank == 0:
            with quiet():
                if adapted(self.model):
                    save_adapters(self.model, folder, weights)
                else:
                    self.model.save_pretrained(folder, state_dict=weights)
                self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        if adapted(self.model):
            load_full_state(self.model, read_adapters(folder))
            return
        with quiet():  # through from_pretrained: files may hold other names than the model (tied, fused or sharded weights)
            trusted = self.config.model.trust_remote_code
            saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=trusted)
        load_full_state(self.model, saved.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)

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


def left_pad(ids: list[list[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token lists to input_ids and attention_mask, both [B, P]."""
    width = max(len(row) for row in ids)
    input_ids = torch.tensor([[pad] * (width - len(row)) + row for row in ids], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=device)
    return input_ids, mask
