"""Quantised weights: a frozen linear layer keeps 4 or 8 bits of each weight.

Every 64 weights share one scale. The full matrix exists only during a product with it.

    nf4   16 levels, the quantiles of a normal distribution   0.56 bytes per weight
    int8  255 evenly spaced levels                            1.06

Dettmers et al. 2023, arXiv:2305.14314. The kernels are bitsandbytes'; its own layers are not used.
Its 8-bit layer also rounds the inputs, so that a row's output depends on the rows beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from telescope.errors import TelescopeError, pip_install

_BLOCK = 64


class QuantizedLinear(nn.Module):
    """A frozen linear layer with quantised weights. It is made on `device`."""

    packed: Tensor
    """The levels of the weights, as bytes."""
    scales: Tensor
    """The largest |weight| of each block."""
    sample: Tensor
    """A few of the weights before they were rounded: they tell models apart."""

    def __init__(self, layer: nn.Linear, kind: str, device: torch.device) -> None:
        super().__init__()
        self.kind = kind
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.dtype = layer.weight.dtype
        self.bias = layer.bias
        weight = layer.weight.detach().to(device)
        if kind == "nf4":
            packed, state = _library().quantize_4bit(weight, blocksize=_BLOCK, quant_type=kind)
        else:
            packed, state = _library().quantize_blockwise(
                weight, code=_int8_levels(weight.device), blocksize=_BLOCK
            )
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("scales", state.absmax, persistent=False)
        self.register_buffer("sample", sample_of(weight), persistent=False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    def full_weight(self) -> Tensor:
        """The weights as they are used, [out, in]."""
        library = _library()
        levels = None if self.kind == "nf4" else _int8_levels(self.packed.device)
        state = library.QuantState(
            absmax=self.scales,
            shape=torch.Size(self.shape),
            code=levels,
            blocksize=_BLOCK,
            quant_type=self.kind,
            dtype=self.dtype,
        )
        weight: Tensor
        if self.kind == "nf4":
            weight = library.dequantize_4bit(self.packed, state)
        else:
            weight = library.dequantize_blockwise(self.packed, state)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            apply: Any = _Product.apply  # torch declares no types for it
            out: Tensor = apply(x, self)
            return out
        return F.linear(x, self.full_weight(), self.bias)

    def plain(self) -> nn.Linear:
        """An ordinary layer that computes the same."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(self.full_weight(), requires_grad=False)
        layer.bias = self.bias
        return layer


class _Product(torch.autograd.Function):
    """The product with the full weights, which are made again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.full_weight(), layer.bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ ctx.layer.full_weight(), None


def quantize(model: Any, kind: str, device: torch.device, *, path: str) -> None:
    """Freezes and quantises every linear layer but the output layer, one after the other.

    The rest of the model stays where it is.
    """
    head = model.get_output_embeddings()
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and layer is not head and ".lora_" not in name
    }
    if not layers:
        raise TelescopeError(
            f"model.quantize = {kind!r}: {path} has no inner linear layer to quantise; "
            'use model.quantize = "none"'
        )
    for name, layer in layers.items():
        layer.requires_grad_(False)
        _replace(model, name, QuantizedLinear(layer, kind, device))


def dequantize(model: nn.Module) -> None:
    """Turns quantised layers into ordinary ones that compute the same."""
    for name, layer in list(quantized_layers(model)):
        _replace(model, name, layer.plain())


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, QuantizedLinear]]:
    """The quantised layers by name."""
    for name, layer in model.named_modules():
        if isinstance(layer, QuantizedLinear):
            yield name, layer


def sample_of(weight: Tensor) -> Tensor:
    """A few of the weights, the same in whatever precision."""
    flat = weight.flatten()
    return flat[:: sampled(flat.numel()).step].bfloat16().float()


def sampled(count: int) -> range:
    """Which of `count` weights `sample_of` takes: 16 to 31, or all of them if they are fewer."""
    return range(0, count, max(1, count // 16))


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)


def _library() -> Any:
    try:
        import bitsandbytes.functional as functions
    except ImportError:
        raise TelescopeError(
            f"model.quantize needs bitsandbytes: {pip_install('bitsandbytes')}"
        ) from None
    return functions


@functools.cache
def _int8_levels(device: torch.device) -> Tensor:
    levels: Tensor = _library().create_linear_map(signed=True, total_bits=8)
    return levels.to(device)
