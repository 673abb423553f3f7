"""Accuracy on held-out prompts: sampled, and greedy."""

from __future__ import annotations

from telescope.config import Config
from telescope.roles.actor import Actor
from telescope.roles.reward import Reward
from telescope.seeds import mix_seed
from telescope.tasks import PromptSet


def evaluate(actor: Actor, reward: Reward, prompts: PromptSet | None, config: Config) -> dict[str, float]:
    """eval/* metrics; empty where there are no held-out prompts. The same weights give the same numbers."""
    if prompts is None:
        return {}
    everything = list(range(len(prompts)))
    sampled = (everything * -(-config.eval.samples // len(everything)))[: config.eval.samples]
    metrics: dict[str, float] = {}
    for kind, index in (("sampled", sampled), ("greedy", everything)):
        scores: list[float] = []
        size = config.rollout.batch_size * config.rollout.n
        for first in range(0, len(index), size):
            seed = mix_seed(config.seed, first, 2)
            batch = actor.sample(prompts.take(index[first : first + size], seed=seed), greedy=kind == "greedy")
            scores += reward.compute_reward(batch).info["score"]
        metrics[f"eval/{kind}_accuracy"] = sum(score >= config.eval.right - 1e-9 for score in scores) / len(scores)
        metrics[f"eval/{kind}_score"] = sum(scores) / len(scores)
    return metrics
