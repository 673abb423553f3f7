"""The forward before an update that its first optimizer step would only repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.models.flops import Cost
from telescope.roles.learner import Learner, micro_batches

Output = TypeVar("Output")

_SMALL = 2**32
"""Operations of a forward that is kept. What its backward needs is then about 100 MB at most."""


class FirstForward(Generic[Output]):
    """A forward of the training batch that is kept, with its graph, for the update's first step.

    π_old and the values are what the model says before the update; so is the first step's output,
    by the same weights of the same rows. Its numbers are the same bit for bit. Only small jobs on
    a CPU keep it: it takes memory until the update.
    """

    def __init__(
        self, forward: Callable[[TokenBatch], Output], learner: Learner, cost: Cost, config: Config
    ) -> None:
        self._forward = forward
        self._learner = learner
        self._cost = cost
        is_one_minibatch = learner.config.minibatches == 1
        is_on_cpu = learner.weights[0].device.type == "cpu"
        is_local = config.backend == "local"  # from a worker the batch comes back as a copy
        is_alone = is_local and learner.ranks.size == 1  # ranks must all do the same forwards
        is_plain = is_alone and not config.model.gradient_checkpointing
        self._may_keep = is_one_minibatch and is_on_cpu and is_plain
        self._rows: Tensor | None = None
        self._kept: Output | None = None

    def ahead(self, batch: TokenBatch) -> Output | None:
        """The output for the whole batch, which is kept; None if the first step has another."""
        self._rows = None
        self._kept = None
        if not self._may_keep or self._cost.forward_flops(batch) > _SMALL:
            return None
        budget = self._learner.config.micro_batch_tokens
        if len(micro_batches(batch, budget, padded=self._learner.padded)) > 1:
            return None
        with torch.enable_grad():
            self._kept = self._forward(batch.without_info())
        self._rows = batch["input_ids"]
        return self._kept

    def __call__(self, rows: TokenBatch) -> Output:
        """The kept output, once, if it is of these very rows; or else a new one."""
        kept = self._kept
        is_of_these = rows["input_ids"] is self._rows
        self._rows = None
        self._kept = None
        return kept if kept is not None and is_of_these else self._forward(rows)
