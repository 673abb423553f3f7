"""Replaces a Hugging Face model's small operations by single kernels, module by module.

The model's own code still runs. Only its norms, gated units and rotary embeddings are computed in
one pass each, and linear layers that read the same input in one product. A layer written like
Llama's adds the attention's output and norms the sum in one pass. An operation is replaced only
where the result is known to be the same; `packed.enable` checks the whole model.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

_GATED_UNIT = ("gate_proj", "up_proj", "down_proj", "act_fn")
_SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_WIDE_NORM = 512
"""Narrower norms, such as those of single heads, are left to torch: ours has a program per row.

With a huge number here, torch computes all norms."""
_OVERRIDES = ("forward", "after_sum", "onto")
"""What `fuse` gives to modules."""


def fuse(backbone: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Fuses a backbone's operations; `unfuse` takes it back.

    `dtype` is what the model computes in, if not that of its weights.
    """
    weight = next(backbone.parameters())
    dtype = dtype or weight.dtype
    if weight.is_cuda:
        _compile_ahead(backbone, dtype, weight.device)
    offsets: dict[Any, float | None] = {}
    for module in backbone.modules():
        if type(module).__name__.endswith("RMSNorm"):
            _fuse_norm(module, dtype, weight.device, offsets)
        elif all(hasattr(module, name) for name in _GATED_UNIT):
            _fuse_gated_unit(module)
        elif hasattr(module, "q_proj") and hasattr(module, "layer_idx"):
            _fuse_attention(module)
        elif hasattr(module, "lora_A"):
            _fuse_adapter(module)
        elif _is_written_like_llama(module):
            _fuse_layer(module)
    join_weights(backbone)


def unfuse(backbone: nn.Module) -> None:
    """Lets every module run its own forward again."""
    for module in backbone.modules():
        for name in _OVERRIDES:
            module.__dict__.pop(name, None)


def _compile_ahead(backbone: Any, dtype: torch.dtype, device: torch.device) -> None:
    from telescope.models.fast.kernels import compile_ahead

    config = backbone.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    width = getattr(config, "intermediate_size", None)
    if not heads or not width:
        return  # a model of another kind
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", "")
    compile_ahead(
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden=config.hidden_size,
        width=width,
        vocabulary=config.vocab_size,
        gelu="gelu" in str(activation),
        dtype=dtype,
        device=device,
    )


# ---- linear layers that read the same input


def join_weights(backbone: nn.Module) -> None:
    """Lays weights that are multiplied with the same input side by side in memory.

    They stay separate parameters. Sharded weights are left alone.
    """
    for module in backbone.modules():
        for names in _SAME_INPUT:
            layers = [_base_layer(getattr(module, name, None)) for name in names]
            if all(_is_plain_linear(layer) for layer in layers):
                layers[0].joined = _Joined(layers)


def _is_plain_linear(layer: Any) -> bool:
    return type(layer) is nn.Linear and not hasattr(layer.weight, "full_tensor")


class _Joined:
    """The weights (and biases) of several layers as one matrix.

    It is valid as long as the layers' own weights are views of it.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self.weight = _side_by_side([layer.weight for layer in layers])
        self.bias: Tensor | None = None
        if all(layer.bias is not None for layer in layers):
            self.bias = _side_by_side([layer.bias for layer in layers])
        # Addresses may change, as those of an offloaded model do; distances stay.
        self._distance = layers[-1].weight.data_ptr() - self.weight.data_ptr()

    def is_valid_for(self, layers: Sequence[nn.Linear]) -> bool:
        first = layers[0].weight
        last = layers[-1].weight
        starts_here = self.weight.data_ptr() == first.data_ptr()
        return starts_here and self._distance == last.data_ptr() - first.data_ptr()


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """One tensor of all parts, which become views of it."""
    joined = torch.cat([part.detach() for part in parts])
    sizes = [len(part) for part in parts]
    for part, view in zip(parts, joined.split(sizes), strict=True):
        part.data = view
    return joined


def joined_linear(x: Tensor, layers: Sequence[Any]) -> Sequence[Tensor]:
    """Each layer's output for x: one product if their weights are joined (`join_weights`)."""
    base_layers = [_base_layer(layer) for layer in layers]
    joined = base_layers[0].__dict__.get("joined")
    if joined is None or not joined.is_valid_for(base_layers):
        return [layer(x) for layer in layers]
    if torch.is_grad_enabled() and (x.requires_grad or base_layers[0].weight.requires_grad):
        own = [layer.weight for layer in base_layers]
        if joined.bias is not None:
            own += [layer.bias for layer in base_layers]
        apply: Any = _JoinedLinear.apply  # torch declares no types for it
        outputs = apply(x, joined, *own)
    else:
        outputs = F.linear(x, joined.weight, joined.bias).split(joined.sizes, -1)
    return [_add_adapter(layer, x, output) for layer, output in zip(layers, outputs, strict=True)]


class _JoinedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, joined: _Joined, *own: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x)
        ctx.joined = joined
        out = F.linear(x, joined.weight, joined.bias)
        parts: tuple[Tensor, ...] = out.split(joined.sizes, -1)
        return parts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        joined: _Joined = ctx.joined
        grad = _concat_columns(grads).view(-1, len(joined.weight))
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (grad @ joined.weight).view(x.shape)
        d_own: list[Tensor | None] = [None] * len(joined.sizes)
        if ctx.needs_input_grad[2]:
            d_own = list((grad.T @ x.reshape(-1, x.shape[-1])).split(joined.sizes))
        if joined.bias is not None:
            if ctx.needs_input_grad[-1]:
                d_own += grad.sum(0).split(joined.sizes)
            else:
                d_own += [None] * len(joined.sizes)
        return d_x, None, *d_own


def _concat_columns(parts: Sequence[Tensor]) -> Tensor:
    """The parts side by side.

    No copy if the parts are already the columns of one matrix, as `GatedUnit`'s gradients are.
    """
    if len(parts) == 2 and parts[0].dim() == 2:
        first, second = parts
        width = first.shape[1] + second.shape[1]
        stride = (width, 1)
        same_stride = first.stride() == second.stride() == stride
        end_of_first = first.storage_offset() + first.shape[1]
        follows = second.storage_offset() == end_of_first
        if same_stride and follows and _storage(first) == _storage(second):
            return first.as_strided((len(first), width), stride)
    return torch.cat(list(parts), -1)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# ---- LoRA adapters


def _base_layer(layer: Any) -> Any:
    """The layer itself, if it stands beside an adapter (see models/lora.py)."""
    return getattr(layer, "base_layer", layer)


def _add_adapter(layer: Any, x: Tensor, output: Tensor) -> Tensor:
    """A layer's own output plus that of its adapter, if it has one.

    One product scales and adds it.
    """
    if not hasattr(layer, "lora_A") or layer.disable_adapters:
        return output
    down = layer.lora_A["default"].weight  # [rank, in]
    up = layer.lora_B["default"].weight  # [out, rank]
    low = F.linear(x.reshape(-1, x.shape[-1]), down)
    flat = output.reshape(-1, len(up))
    return torch.addmm(flat, low, up.T, alpha=layer.scaling["default"]).view_as(output)


def _fuse_adapter(module: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return _add_adapter(self, x, self.base_layer(x))

    module.forward = types.MethodType(forward, module)


# ---- norms, gated units, attention


def _fuse_norm(
    module: Any, dtype: torch.dtype, device: torch.device, offsets: dict[Any, float | None]
) -> None:
    """Fuses weight·x/rms(x), or Gemma's (1 + weight)·x/rms(x), whichever the module computes.

    `offsets` remembers which it was for modules like it. `after_sum`, of wide norms alone, norms
    x + added, and returns the sum too.
    """
    from telescope.models.fast.kernels import add_rms_norm, rms_norm

    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if epsilon is None or weight is None:
        return
    settings = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    kind = (type(module), weight.numel(), repr(settings))
    if kind not in offsets:
        offsets[kind] = _weight_offset(module, weight.numel(), epsilon, dtype, device)
    offset = offsets[kind]
    if offset is None:
        return

    is_wide = weight.numel() >= _WIDE_NORM

    def scale(self: Any) -> Tensor:
        weight: Tensor = self.weight
        return weight + offset if offset else weight

    def forward(self: Any, x: Tensor) -> Tensor:
        if is_wide:
            return rms_norm(x, scale(self), epsilon)
        return F.rms_norm(x, self.weight.shape, scale(self), epsilon)

    def after_sum(self: Any, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, added, scale(self), epsilon)

    module.forward = types.MethodType(forward, module)
    if is_wide:
        module.after_sum = types.MethodType(after_sum, module)


def _weight_offset(
    module: Any, width: int, epsilon: float, dtype: torch.dtype, device: torch.device
) -> float | None:
    """What a norm adds to its weight; None if it is another kind of norm."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(5, width, generator=generator).to(device, dtype)
    probe, (weight,) = drawn.split([4, 1])  # [4, width], [width]
    # With a weight of ours: the module's own may be sharded.
    own = torch.func.functional_call(module, {"weight": weight}, (probe,)).float()
    for offset in (0.0, 1.0):
        shifted = weight + offset if offset else weight
        ours = F.rms_norm(probe, weight.shape, shifted, epsilon).float()
        if torch.allclose(ours, own, rtol=0.03, atol=0.03):
            return offset
    return None


def _fuse_gated_unit(module: Any) -> None:
    """Fuses down(act(gate(x))·up(x)), with act = SiLU or tanh-GELU."""
    from telescope.models.fast.kernels import gated_unit

    activation = type(module.act_fn).__name__
    if activation not in ("SiLU", "SiLUActivation", "GELUTanh", "PytorchGELUTanh"):
        return
    gelu = "GELU" in activation

    def gated(self: Any, x: Tensor) -> Tensor:
        gate, up = joined_linear(x.reshape(-1, x.shape[-1]), (self.gate_proj, self.up_proj))
        return gated_unit(gate, up, gelu)

    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(gated(self, x))
        return out.view(*x.shape[:-1], -1)

    def onto(self: Any, total: Tensor, x: Tensor) -> Tensor:
        """Adds the output for x to `total`, in place if one product can."""
        down = self.down_proj
        if not _is_plain_linear(down) or down.bias is not None:
            out: Tensor = self(x)
            return total + out
        total.view(-1, total.shape[-1]).addmm_(gated(self, x), down.weight.T)
        return total

    module.forward = types.MethodType(forward, module)
    module.onto = types.MethodType(onto, module)


# ---- layers


def _is_written_like_llama(module: nn.Module) -> bool:
    """Whether a decoder layer's forward is, instruction by instruction, that of Llama.

    So are those of Qwen 2 and 3, Mistral, Gemma 1 and SmolLM.
    """
    llama = inspect.unwrap(LlamaDecoderLayer.forward).__code__
    own = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return own is not None and all(
        getattr(own, part) == getattr(llama, part)
        for part in ("co_code", "co_names", "co_varnames", "co_argcount", "co_consts")
    )


def _fuse_layer(module: Any) -> None:
    """Adds the attention's output and norms the sum in one pass.

    A `layout` that says so gets the gated unit's output added within its last product, which
    rounds once less than training does.
    """

    def forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        norm = self.post_attention_layernorm
        layout = kwargs.get("layout")
        total: Tensor
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        if hasattr(norm, "after_sum"):
            total, normed = norm.after_sum(hidden_states, attended)
        else:
            total = hidden_states + attended
            normed = norm(total)
        if layout is not None and layout.rounds_once and hasattr(self.mlp, "onto"):
            total = self.mlp.onto(total, normed)
        else:
            total = total + self.mlp(normed)
        return total

    module.forward = types.MethodType(forward, module)


def _fuse_attention(module: Any) -> None:
    """Keeps the attention's own forward, with our rotary kernel and one product for q, k and v."""
    from telescope.models.fast.kernels import rotary

    own = inspect.unwrap(type(module).forward)
    own_rotary = own.__globals__.get("apply_rotary_pos_emb")
    if own_rotary is None or "apply_rotary_pos_emb" not in own.__code__.co_names:
        return

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **kwargs: Any) -> Any:
        if kwargs or cos.shape[-1] != q.shape[-1]:
            return own_rotary(q, k, cos, sin, **kwargs)
        return rotary(q, k, cos, sin)

    names = {**own.__globals__, "apply_rotary_pos_emb": rotate}
    fused = types.FunctionType(own.__code__, names, own.__name__, own.__defaults__)
    fused.__kwdefaults__ = own.__kwdefaults__

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if any(type(_base_layer(layer)) is not nn.Linear for layer in projections):
            return fused(self, hidden_states, *args, **kwargs)
        q, k, v = joined_linear(hidden_states, projections)
        return fused(_Projected(self, q, k, v), hidden_states, *args, **kwargs)

    module.forward = types.MethodType(forward, module)


class _Projected:
    """An attention module whose projections of the current input are computed already."""

    def __init__(self, module: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.module = module
        self.q_proj = lambda _: q
        self.k_proj = lambda _: k
        self.v_proj = lambda _: v

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)
