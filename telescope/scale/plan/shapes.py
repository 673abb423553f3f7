"""Sizes of dense decoders with gated units, without norms and biases. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

GIB = 2**30


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense decoder."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool

    @property
    def layer(self) -> int:
        """Weights of one layer."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def matrices(self) -> int:
        """Weights of all layers."""
        return self.layers * self.layer

    @property
    def table(self) -> int:
        """Weights of the embeddings. The output layer has as many, or shares them."""
        return self.hidden * self.vocabulary

    @property
    def largest(self) -> int:
        """Weights of the largest tensor."""
        return max(self.table, self.hidden * self.intermediate)

    @property
    def policy(self) -> int:
        """Weights of a policy of this shape."""
        return self.matrices + self.table * (1 if self.tied else 2)

    @property
    def critic(self) -> int:
        """Weights of a critic of this shape; its head is too small to count."""
        return self.matrices + self.table

    def adapters(self, rank: int, targets: Sequence[str] = ()) -> int:
        """Weights of LoRA adapters of all layers, or of those named."""
        adapted = self._adapted(targets)
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in adapted)

    def adapter_work(self, targets: Sequence[str] = ()) -> int:
        """Numbers per token beside a layer's own while its adapters compute.

        Each has a copy of its input. Of the widest output there are three: the adapter's, the same
        scaled, and the sum.
        """
        adapted = self._adapted(targets)
        widest = max((outputs for _, outputs in adapted), default=0)
        return sum(inputs for inputs, _ in adapted) + 3 * widest

    def _adapted(self, targets: Sequence[str]) -> list[tuple[int, int]]:
        """Inputs and outputs of the products of a layer that have an adapter."""
        query = self.heads * self.head_dim
        key = self.kv_heads * self.head_dim
        sizes = {
            "q_proj": (self.hidden, query),
            "k_proj": (self.hidden, key),
            "v_proj": (self.hidden, key),
            "o_proj": (query, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }
        names = {target.rpartition(".")[2] for target in targets} or sizes.keys()
        return [sizes[name] for name in sizes if name in names]

    @property
    def saved(self) -> int:
        """Numbers per token that a layer keeps for its gradient.

        2 residuals and 2 norms; q, k, v, q and k rotated, the attention's output; gate, up and
        their product.
        """
        attention = 3 * self.head_dim * (self.heads + self.kv_heads)
        return 4 * self.hidden + attention + 3 * self.intermediate

    def cached(self, split: int = 1) -> int:
        """Numbers of a token in the cache of one of `split` GPUs: whole K/V heads."""
        return 2 * self.layers * max(self.kv_heads // split, 1) * self.head_dim


SHAPES = {
    "135M": Shape(576, 30, 9, 3, 64, 1536, 49152, True),  # SmolLM2
    "0.5B": Shape(896, 24, 14, 2, 64, 4864, 151936, True),  # Qwen2.5
    "1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151936, True),
    "7B": Shape(3584, 28, 28, 4, 128, 18944, 152064, False),
    "8B": Shape(4096, 32, 32, 8, 128, 14336, 128256, False),  # Llama 3.1
    "32B": Shape(5120, 64, 40, 8, 128, 27648, 152064, False),  # Qwen2.5
    "70B": Shape(8192, 80, 64, 8, 128, 28672, 128256, False),
}

NO_CRITIC = Shape(0, 0, 0, 0, 0, 0, 1, True)
"""A critic whose values are zeros."""


def read_shape(path: str) -> Shape | None:
    """The shape in a model folder's config.json; None if there is no such folder."""
    file = Path(path).expanduser() / "config.json"
    if not file.is_file():
        return None
    config: dict[str, Any] = json.loads(file.read_text("utf-8"))
    config = config.get("text_config", config)
    if any("experts" in key for key in config):
        raise TelescopeError(f"{file} is of a mixture of experts: a plan is for dense models")
    try:
        hidden = config["hidden_size"]
        heads = config["num_attention_heads"]
        return Shape(
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            tied=config.get("tie_word_embeddings", False),
        )
    except KeyError as key:
        raise TelescopeError(
            f"{file} has no {key}: a plan is for Llama-like models; "
            "name a shape with --shape instead"
        ) from None
