"""The reference: the policy as it was at the start. KL is measured against it.

With LoRA it is the actor's own model with its adapters off, so it needs no weights of its own. A
separate model may wait in host memory (`model.offload_reference`).
"""

from __future__ import annotations

from typing import Any

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.models.lora import adapters_off
from telescope.models.offload import HostMemory
from telescope.models.parallel import Ranks
from telescope.roles.learner import map_policy


class Reference:
    """The frozen policy in this process."""

    def __init__(self, model: Any, config: Config, ranks: Ranks | None = None) -> None:
        self.model = model
        self.config = config
        self.ranks = ranks or Ranks()
        self.host = HostMemory()
        self.offloaded = list(model.parameters()) if config.model.offload_reference else []
        self.host.move_out(self.offloaded)

    def compute_log_prob(self, batch: TokenBatch) -> TokenBatch:
        """Adds ref_log_prob, at the sampling temperature like every other log-prob."""
        on_device = self.host.on_device(self.offloaded, changed=False)
        with adapters_off(self.model), on_device:
            log_probs = map_policy(
                self.model,
                batch,
                self.config.actor.micro_batch_tokens,
                temperature=self.config.rollout.temperature,
                ranks=self.ranks,
            )
        return batch.with_columns(ref_log_prob=log_probs)
