"""The reference: the policy as it was at the start. KL is measured against it.

With LoRA it is the actor's own model with its adapters off, so it needs no weights of its own. A
separate model may wait in host memory (`model.offload_reference`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.models.forward import policy_forward
from telescope.models.load import is_packable
from telescope.models.lora import adapters_off
from telescope.models.offload import HostMemory
from telescope.models.parallel import Ranks
from telescope.roles.learner import map_rows


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
        temperature = self.config.rollout.temperature

        def forward(rows: TokenBatch) -> tuple[Tensor]:
            return (policy_forward(self.model, rows, temperature=temperature).log_probs,)

        on_device = self.host.on_device(self.offloaded, changed=False)
        with adapters_off(self.model), on_device:
            (log_probs,) = map_rows(
                batch,
                self.config.actor.micro_batch_tokens,
                forward,
                padded=not is_packable(self.model),
                ranks=self.ranks,
            )
        return batch.with_columns(ref_log_prob=log_probs)
