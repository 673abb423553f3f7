"""Floating-point operations of a forward and of a training step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from telescope.batch import TokenBatch
from telescope.models.quantize import quantized_layers


@dataclass(frozen=True)
class Cost:
    """The sizes of a model that decide what a forward costs."""

    matrices: int
    """Weights of all layers' matrices."""
    head: int
    """Weights of the output layer; 0 for a critic, whose head is tiny."""
    attention: int
    """Layers × width of all queries."""
    frozen_matrices: int = 0
    """Those of `matrices` without a gradient."""
    frozen_head: int = 0
    """Those of `head` without a gradient."""

    def forward_flops(self, batch: TokenBatch) -> float:
        """Multiplications and additions over the batch: two per weight and token.

        The output layer computes response tokens only.
        """
        lengths = batch.row_lengths()
        matrices = 2.0 * self.matrices * sum(lengths)
        attention = 2.0 * self.attention * sum(n * n for n in lengths)
        head = 2.0 * self.head * sum(batch.host("response"))
        return matrices + attention + head

    def training_flops(self, batch: TokenBatch, epochs: int) -> float:
        """A backward costs two forwards; one for frozen weights.

        What is computed again to save memory does not count.
        """
        frozen = Cost(self.frozen_matrices, self.frozen_head, attention=0)
        per_epoch = 3 * self.forward_flops(batch) - frozen.forward_flops(batch)
        return per_epoch * epochs


def cost_of(model: Any) -> Cost:
    """The cost of a policy or a value model."""
    backbone = getattr(model, "backbone", model)
    config = backbone.config.get_text_config()
    head_dim = getattr(config, "head_dim", None)
    if not head_dim:
        head_dim = config.hidden_size // config.num_attention_heads
    head = backbone.get_output_embeddings()
    output = [] if head is None else [head.weight]
    embeddings = backbone.get_input_embeddings().weight
    matrices = [p for p in backbone.base_model.parameters() if p.dim() == 2 and p is not embeddings]
    quantized = sum(math.prod(layer.shape) for _, layer in quantized_layers(backbone))
    return Cost(
        matrices=_count(matrices) + quantized,
        head=_count(output),
        attention=config.num_hidden_layers * config.num_attention_heads * head_dim,
        frozen_matrices=_count(p for p in matrices if not p.requires_grad) + quantized,
        frozen_head=_count(p for p in output if not p.requires_grad),
    )


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
