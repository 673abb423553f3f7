"""Greedy answers to a few held-out prompts, with their credit: one prompt through training."""

from __future__ import annotations

from telescope.build import Roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.loader import PromptSet
from telescope.ledger.writer import Ledger


def record_fixed_prompts(
    step: int,
    roles: Roles,
    prompts: PromptSet | None,
    config: Config,
    ledger: Ledger,
    *,
    kl_coef: float,
) -> None:
    """Writes the greedy answers of the policy after `step`, if `ledger.prompts` asks for any.

    They are scored, with V, KL and advantages. Nothing is updated and nothing random is drawn:
    training goes on as without them. An advantage that is not by a critic compares an answer with
    others, so there is none here.
    """
    if prompts is None or not config.ledger.prompts:
        return
    first = range(min(config.ledger.prompts, len(prompts)))
    batch = roles.actor.sample(prompts.take(first), greedy=True)
    batch = batch.with_columns(old_log_probs=batch["rollout_log_probs"])
    batch = roles.critic.compute_values(batch)
    batch = roles.reference.compute_log_prob(batch)
    batch = roles.reward.score(batch, evaluation=True)
    if config.credit.by_critic:
        batch = compute_advantages(batch, config.credit, kl_coef=kl_coef)
    ledger.write_evaluation(step, batch, kl_coef=kl_coef)
