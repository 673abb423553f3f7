"""Swaps a Hugging Face model's small operations for single kernels, in place, instance by instance.

The model's own code stays what runs; only its norms, gated units and rotary embeddings are computed in one pass each, and
linear layers that read the same input in one product. A swap is made where it is known to compute the same;
`packed.enable` checks the whole.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def fuse(backbone: nn.Module, dtype: torch.dtype | None = None) -> None:
    """See above; `unfuse` takes it back. `dtype` is what the model computes in, if not that of its weights."""
    weight = next(backbone.parameters())
    dtype = dtype or weight.dtype
    if weight.is_cuda:
        _compile_ahead(backbone, dtype, weight.device)
    offsets: dict[Any, float | None] = {}
    for module in backbone.modules():
        if type(module).__name__.endswith("RMSNorm"):
            _fuse_norm(module, dtype, weight.device, offsets)
        elif all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
            _fuse_gated_unit(module)
        elif hasattr(module, "q_proj") and hasattr(module, "layer_idx"):
            _fuse_attention(module)
        elif hasattr(module, "lora_A"):
            _fuse_adapter(module)
    join(backbone)


def _compile_ahead(backbone: Any, dtype: torch.dtype, device: torch.device) -> None:
    from telescope.models.fast.kernels import compile_ahead

    config = backbone.config.get_text_config()
    heads, width = (
        getattr(config, "num_attention_heads", None),
        getattr(config, "intermediate_size", None),
    )
    if heads and width:  # else it is a model of another kind
        compile_ahead(
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            width=width,
            vocabulary=config.vocab_size,
            gelu="gelu"
            in str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", "")),
            dtype=dtype,
            device=device,
        )


def unfuse(backbone: nn.Module) -> None:
    for module in backbone.modules():
        module.__dict__.pop("forward", None)


def join(backbone: nn.Module) -> None:
    """Lets weights that are multiplied with the same input lie one after the other in memory. They stay parameters of their own."""
    for module in backbone.modules():
        for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            layers: list[Any] = [_own(getattr(module, name, None)) for name in names]
            if all(
                type(layer) is nn.Linear and not hasattr(layer.weight, "full_tensor")
                for layer in layers
            ):  # nor sliced
                layers[0].joined = _Joined(
                    [layer.weight for layer in layers], [layer.bias for layer in layers]
                )


class _Joined:
    """The weights (and biases) of several layers as one matrix. Valid as long as the layers' own are views of it."""

    def __init__(self, weights: list[nn.Parameter], biases: list[Any]) -> None:
        self.sizes = [len(weight) for weight in weights]
        self.weight = _side_by_side(weights, self.sizes)
        self.bias = (
            None if any(bias is None for bias in biases) else _side_by_side(biases, self.sizes)
        )
        self.last = weights[-1].data_ptr()

    def holds(self, layers: Sequence[Any]) -> bool:
        return (
            self.weight.data_ptr() == layers[0].weight.data_ptr()
            and self.last == layers[-1].weight.data_ptr()
        )


def _side_by_side(parts: list[Any], sizes: list[int]) -> Tensor:
    joined = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, joined.split(sizes), strict=True):
        part.data = view
    return joined


def joined_linear(x: Tensor, layers: Sequence[Any]) -> Sequence[Tensor]:
    """Each layer's output for x, by one product where their weights lie one after the other (`join`)."""
    plain = [_own(layer) for layer in layers]
    joined = plain[0].__dict__.get("joined")
    if joined is None or not joined.holds(plain):
        return [layer(x) for layer in layers]
    if torch.is_grad_enabled() and (x.requires_grad or plain[0].weight.requires_grad):
        own = [layer.weight for layer in plain] + [
            layer.bias for layer in plain if joined.bias is not None
        ]
        outputs = _JoinedLinear.apply(x, joined, *own)
    else:
        outputs = F.linear(x, joined.weight, joined.bias).split(joined.sizes, -1)
    return [_adapt(layer, x, output) for layer, output in zip(layers, outputs, strict=True)]


def _own(layer: Any) -> Any:
    """The layer itself, where it stands beside an adapter (see models/lora.py)."""
    return getattr(layer, "base_layer", layer)


def _adapt(layer: Any, x: Tensor, output: Tensor) -> Tensor:
    """A layer's own output plus its adapter's, if it has one, scaled and added by the product that makes it."""
    if not hasattr(layer, "lora_A") or layer.disable_adapters:
        return output
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    low = F.linear(x.reshape(-1, x.shape[-1]), down)
    return torch.addmm(
        output.reshape(-1, len(up)), low, up.T, alpha=layer.scaling["default"]
    ).view_as(output)


def _fuse_adapter(module: Any) -> None:
    module.forward = types.MethodType(lambda self, x: _adapt(self, x, self.base_layer(x)), module)


class _JoinedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, joined: _Joined, *own: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x)
        ctx.joined = joined
        return F.linear(x, joined.weight, joined.bias).split(joined.sizes, -1)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,), joined = ctx.saved_tensors, ctx.joined
        grad = _whole(grads).view(-1, len(joined.weight))
        d_x = (grad @ joined.weight).view(x.shape) if ctx.needs_input_grad[0] else None
        d_own: list[Tensor | None] = [None] * len(joined.sizes)
        if ctx.needs_input_grad[2]:
            d_own = list((grad.T @ x.reshape(-1, x.shape[-1])).split(joined.sizes))
        if joined.bias is not None:
            d_own += (
                grad.sum(0).split(joined.sizes)
                if ctx.needs_input_grad[-1]
                else [None] * len(joined.sizes)
            )
        return d_x, None, *d_own


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """Columns one after the other: a new tensor, unless the parts are already the columns of one (as `GatedUnit`'s gradients are)."""
    first, second, width = parts[0], parts[-1], sum(part.shape[-1] for part in parts)
    if (
        len(parts) == 2
        and first.dim() == 2
        and first.stride() == second.stride() == (width, 1)
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and second.storage_offset() == first.storage_offset() + first.shape[1]
    ):
        return first.as_strided((len(first), width), (width, 1))
    return torch.cat(list(parts), -1)


def _fuse_norm(
    module: Any, dtype: torch.dtype, device: torch.device, offsets: dict[Any, float | None]
) -> None:
    """weight·x/rms(x), or Gemma's (1 + weight)·x/rms(x): whichever the module does, which `offsets` remembers of modules like it."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if epsilon is None or weight is None:
        return
    kind = (
        type(module),
        weight.numel(),
        repr({name: value for name, value in vars(module).items() if not name.startswith("_")}),
    )
    if kind not in offsets:
        offsets[kind] = _offset(module, weight.numel(), epsilon, dtype, device)
    offset = offsets[kind]
    if offset is None:
        return

    def forward(self: Any, x: Tensor) -> Tensor:
        return F.rms_norm(
            x, self.weight.shape, self.weight + offset if offset else self.weight, epsilon
        )

    module.forward = types.MethodType(forward, module)


def _offset(
    module: Any, width: int, epsilon: float, dtype: torch.dtype, device: torch.device
) -> float | None:
    """What is added to the weight of a norm; none: it does something else."""
    probe, (weight,) = (
        torch.randn(5, width, generator=torch.Generator().manual_seed(0))
        .to(device, dtype)
        .split([4, 1])
    )
    own = torch.func.functional_call(
        module, {"weight": weight}, (probe,)
    ).float()  # its own weight may be sliced
    for offset in (0.0, 1.0):
        ours = F.rms_norm(
            probe, weight.shape, weight + offset if offset else weight, epsilon
        ).float()
        if torch.allclose(ours, own, rtol=0.03, atol=0.03):
            return offset
    return None


def _fuse_gated_unit(module: Any) -> None:
    from telescope.models.fast.kernels import gated_unit

    name = type(module.act_fn).__name__
    if name not in ("SiLU", "SiLUActivation", "GELUTanh", "PytorchGELUTanh"):
        return
    gelu = "GELU" in name

    def forward(self: Any, x: Tensor) -> Tensor:
        gate, up = joined_linear(x.reshape(-1, x.shape[-1]), (self.gate_proj, self.up_proj))
        return self.down_proj(gated_unit(gate, up, gelu)).view(*x.shape[:-1], -1)

    module.forward = types.MethodType(forward, module)


def _fuse_attention(module: Any) -> None:
    """The attention's own forward, with rotary embeddings by our kernel and its three projections made together."""
    from telescope.models.fast.kernels import rotary

    own = inspect.unwrap(type(module).forward)
    plain = own.__globals__.get("apply_rotary_pos_emb")
    if plain is None or "apply_rotary_pos_emb" not in own.__code__.co_names:
        return

    def rotate(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if kwargs or cos.shape[-1] != q.shape[-1]:
            return plain(q, k, cos, sin, **kwargs)
        return rotary(q, k, cos, sin)

    fused = types.FunctionType(
        own.__code__,
        {**own.__globals__, "apply_rotary_pos_emb": rotate},
        own.__name__,
        own.__defaults__,
    )
    fused.__kwdefaults__ = own.__kwdefaults__

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if any(type(_own(layer)) is not nn.Linear for layer in projections):
            return fused(self, hidden_states, *args, **kwargs)
        return fused(
            _Projected(self, *joined_linear(hidden_states, projections)),
            hidden_states,
            *args,
            **kwargs,
        )

    module.forward = types.MethodType(forward, module)


class _Projected:
    """An attention module whose projections of the current input are made already."""

    def __init__(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.module, self.q_proj, self.k_proj, self.v_proj = (
            module,
            lambda _: q,
            lambda _: k,
            lambda _: v,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)
