"""Stage 1 of a training step: the batch of responses that it trains on."""

from __future__ import annotations

from telescope.batch import TokenBatch
from telescope.config import RolloutConfig
from telescope.data.loader import DataLoader, Prompts
from telescope.rollout.refill import Generator, Scorer, refill


class RolloutStage:
    """Asks the actor for responses, ahead of time and with dynamic sampling where configured."""

    def __init__(
        self, actor: Generator, reward: Scorer, data: DataLoader, config: RolloutConfig
    ) -> None:
        self.actor = actor
        self.reward = reward
        self.data = data
        self.config = config

    def generate_sequences(
        self, step: int, prompts: Prompts
    ) -> tuple[TokenBatch, dict[str, float]]:
        """The step's batch, and the metrics of dynamic sampling."""
        batch = self.actor.generate_sequences(prompts, upcoming=self._upcoming(step))
        rounds = self.config.dynamic_sampling
        if not rounds:
            return batch, {}
        return refill(batch, step, self.actor, self.reward, self.data, rounds=rounds)

    def _upcoming(self, step: int) -> Prompts | None:
        """The next step's prompts, if they are to be answered during this step."""
        if self.config.one_step_off_policy and step + 1 < self.data.steps:
            return self.data.at(step + 1)
        return None
