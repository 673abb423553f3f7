"""Arithmetic operations of a forward and a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from telescope.batch import TokenBatch


@dataclass(frozen=True)
class Cost:
    """What a forward of a model takes."""

    matrices: int
    """Weights of all layers' matrices."""
    head: int
    """Weights of the output layer; a critic has none to speak of."""
    attention: int
    """Layers × width of all queries."""
    frozen: tuple[int, int] = (0, 0)
    """How many of the matrices' and of the head's weights get no gradient."""

    def forward_flops(self, batch: TokenBatch) -> float:
        """Multiplications and additions over the batch: two per weight and token, the output layer's for response tokens alone."""
        lengths = batch.row_lengths()
        attention = 2.0 * self.attention * sum(n * n for n in lengths)
        return (
            2.0 * self.matrices * sum(lengths)
            + attention
            + 2.0 * self.head * sum(batch.host("response"))
        )

    def training_flops(self, batch: TokenBatch, epochs: int) -> float:
        """A backward is twice a forward, once for frozen weights. What is computed again to save memory does not count."""
        matrices, head = self.frozen
        frozen = Cost(matrices, head, 0)
        return (3 * self.forward_flops(batch) - frozen.forward_flops(batch)) * epochs


def cost_of(model: Any) -> Cost:
    backbone = getattr(model, "backbone", model)
    head, embeddings = backbone.get_output_embeddings(), backbone.get_input_embeddings().weight
    config = backbone.config.get_text_config()
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    matrices = [p for p in backbone.base_model.parameters() if p.dim() == 2 and p is not embeddings]
    output = [] if head is None else [head.weight]
    return Cost(
        matrices=sum(p.numel() for p in matrices),
        head=sum(p.numel() for p in output),
        attention=config.num_hidden_layers * width,
        frozen=(
            sum(p.numel() for p in matrices if not p.requires_grad),
            sum(p.numel() for p in output if not p.requires_grad),
        ),
    )
