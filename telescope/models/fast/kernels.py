"""The GPU's kernels for training, in Triton: one pass over memory instead of PyTorch's many.

Each computes in float32 and has a plain PyTorch twin in the tests, which run them in Triton's
interpreter where there is no GPU. Imported only where they are used.
"""

# Triton's arguments are pointers and compile-time constants, which Python's types do not describe.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from telescope.models.fast.decode_kernels import (
    FEW_PROGRAMS,
    attend_cache,
    sample_tokens,
    write_cache,
)

_NORM_PROGRAMS = 2048
"""Programs that share the rows of a norm's gradient. Each adds up the weight's over its rows."""
_GATED_BLOCK = 512
_VOCABULARY_BLOCK = 4096


# ---- rotary position embedding


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of q [B, H, L, D] and k [B, K, L, D] by cos, sin [B, L, D]."""
    q_out, k_out = _apply_rotary(q, k, cos, sin)
    return q_out, k_out


class Rotary(torch.autograd.Function):
    """Its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return _rotate(q, k, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dq, dk = grads
        cos, sin = ctx.saved_tensors
        return *_rotate(dq, dk, cos, sin, -1.0), None, None


_apply_rotary: Any = Rotary.apply  # torch declares no types for it


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    rows, heads, length, dim = q.shape
    if (rows > 1 and length > 1) or cos.shape[0] != rows:
        return _rotate_flat(q, k, cos, sin, sign)
    kv_heads = k.shape[1]
    tokens_q = 2 if length > 1 else 0  # the dimension of the tokens, in q and k
    tokens_cos = 1 if length > 1 else 0
    q_out = torch.empty(rows, length, heads, dim, dtype=q.dtype, device=q.device)
    k_out = torch.empty(rows, length, kv_heads, dim, dtype=k.dtype, device=k.device)
    half = dim // 2
    _rotate_kernel[(rows * length,)](
        q,
        k,
        q_out,
        k_out,
        cos,
        sin,
        sign,
        q.stride(tokens_q),
        q.stride(1),
        k.stride(tokens_q),
        k.stride(1),
        cos.stride(tokens_cos),
        Q=heads,
        K=kv_heads,
        HALF=half,
        Q2=triton.next_power_of_2(heads),
        K2=triton.next_power_of_2(kv_heads),
        HALF2=triton.next_power_of_2(half),
    )
    return q_out.transpose(1, 2), k_out.transpose(1, 2)


def _rotate_flat(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sign: float
) -> tuple[Tensor, Tensor]:
    """`_rotate` of several rows as one long row: the kernel needs tokens at even distances."""
    rows, _, length, dim = q.shape

    def flat(x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(1, rows * length, -1, dim).transpose(1, 2)

    def flat_angles(x: Tensor) -> Tensor:
        return x.expand(rows, length, dim).reshape(1, rows * length, dim)

    def back(x: Tensor) -> Tensor:
        return x.transpose(1, 2).view(rows, length, -1, dim).transpose(1, 2)

    q_out, k_out = _rotate(flat(q), flat(k), flat_angles(cos), flat_angles(sin), sign)
    return back(q_out), back(k_out)


@triton.jit
def _rotate_heads(
    source,
    target,
    cos,
    sin,
    stride,
    HEADS: tl.constexpr,
    HEADS2: tl.constexpr,
    HALF: tl.constexpr,
    HALF2: tl.constexpr,
):
    head = tl.arange(0, HEADS2)[:, None]
    d = tl.arange(0, HALF2)[None, :]
    exists = (head < HEADS) & (d < HALF)
    x = tl.load(source + head * stride + d, mask=exists, other=0.0).to(tl.float32)
    y = tl.load(source + head * stride + d + HALF, mask=exists, other=0.0).to(tl.float32)
    tl.store(target + head * 2 * HALF + d, x * cos - y * sin, mask=exists)
    tl.store(target + head * 2 * HALF + d + HALF, y * cos + x * sin, mask=exists)


@triton.jit
def _rotate_kernel(
    q,
    k,
    q_out,
    k_out,
    cos,
    sin,
    sign,
    q_token,
    q_head,
    k_token,
    k_head,
    cos_token,
    Q: tl.constexpr,
    K: tl.constexpr,
    HALF: tl.constexpr,
    Q2: tl.constexpr,
    K2: tl.constexpr,
    HALF2: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HALF2)[None, :]
    c = tl.load(cos + n * cos_token + d, mask=d < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + n * cos_token + d, mask=d < HALF, other=0.0).to(tl.float32) * sign
    _rotate_heads(q + n * q_token, q_out + n * Q * 2 * HALF, c, s, q_head, Q, Q2, HALF, HALF2)
    _rotate_heads(k + n * k_token, k_out + n * K * 2 * HALF, c, s, k_head, K, K2, HALF, HALF2)


# ---- norms


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x/rms(x)·weight over the last dimension of x [..., H]."""
    normed: Tensor = _rms_norm(x, weight, epsilon)
    return normed


def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x + added, and its `rms_norm`."""
    total, normed = _add_rms_norm(x, added, weight, epsilon)
    return total, normed


class RMSNorm(torch.autograd.Function):
    """Keeps its input and 1/rms of every row for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x, normed, scales = _norm(x, None, weight, epsilon)
        ctx.save_for_backward(x, weight, scales)
        return normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (d_normed,) = grads
        x, weight, scales = ctx.saved_tensors
        needs_weight = ctx.needs_input_grad[1]
        d_x, d_weight = _norm_grad(x, weight, scales, d_normed, None, needs_weight)
        return d_x, d_weight, None


class AddRMSNorm(torch.autograd.Function):
    """The same for a sum, whose own gradient joins that of the norm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        total, normed, scales = _norm(x, added, weight, epsilon)
        ctx.save_for_backward(total, weight, scales)
        return total, normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_total, d_normed = grads
        total, weight, scales = ctx.saved_tensors
        needs_weight = ctx.needs_input_grad[2]
        d_x, d_weight = _norm_grad(total, weight, scales, d_normed, d_total, needs_weight)
        return d_x, d_x, d_weight, None


_rms_norm: Any = RMSNorm.apply
_add_rms_norm: Any = AddRMSNorm.apply


def _norm(
    x: Tensor, added: Tensor | None, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x, or x + added; its norm; and 1/rms of every row."""
    x = x.contiguous()
    width = x.shape[-1]
    rows = x.numel() // width
    total = x if added is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        _norm_kernel[(rows,)](
            x,
            x if added is None else added.contiguous(),
            weight,
            total,
            normed,
            scales,
            epsilon,
            width,
            ADD=added is not None,
            **_norm_shape(width),
        )
    return total, normed, scales


def _norm_grad(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    d_normed: Tensor,
    d_total: Tensor | None,
    needs_weight: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and of the weight; `d_total` is what comes to x past the norm."""
    rows, width = len(scales), x.shape[-1]
    programs = min(rows, _NORM_PROGRAMS)
    d_normed = d_normed.contiguous()
    d_x = torch.empty_like(x)
    d_weights = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    if rows:
        _norm_grad_kernel[(programs,)](
            x,
            weight,
            scales,
            d_normed,
            d_normed if d_total is None else d_total.contiguous(),
            d_x,
            d_weights,
            rows,
            width,
            ADD=d_total is not None,
            WEIGHT=needs_weight,
            **_norm_shape(width),
        )
    d_weight = d_weights.sum(0).to(weight.dtype) if needs_weight else None
    return d_x, d_weight


def _norm_shape(width: int) -> dict[str, int]:
    """Each program holds a whole row, 8 numbers per thread where that suffices."""
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 8)}


@triton.jit
def _norm_kernel(
    x,
    added,
    weight,
    total,
    normed,
    scales,
    epsilon,
    width,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    exists = i < width
    value = tl.load(x + row * width + i, mask=exists, other=0.0)
    if ADD:
        other = tl.load(added + row * width + i, mask=exists, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
        tl.store(total + row * width + i, value, mask=exists)
    value = value.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / width + epsilon)
    tl.store(scales + row, scale)
    w = tl.load(weight + i, mask=exists, other=0.0).to(tl.float32)
    tl.store(normed + row * width + i, value * scale * w, mask=exists)


@triton.jit
def _norm_grad_kernel(
    x,
    weight,
    scales,
    d_normed,
    d_total,
    d_x,
    d_weights,
    rows,
    width,
    ADD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    i = tl.arange(0, BLOCK)
    exists = i < width
    w = tl.load(weight + i, mask=exists, other=0.0).to(tl.float32)
    d_w = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, programs):
        at = row * width + i
        scale = tl.load(scales + row)
        hat = tl.load(x + at, mask=exists, other=0.0).to(tl.float32) * scale
        grad = tl.load(d_normed + at, mask=exists, other=0.0).to(tl.float32)
        d_hat = grad * w
        result = scale * (d_hat - hat * (tl.sum(d_hat * hat, 0) / width))
        if ADD:
            result += tl.load(d_total + at, mask=exists, other=0.0).to(tl.float32)
        tl.store(d_x + at, result, mask=exists)
        if WEIGHT:
            d_w += grad * hat
    if WEIGHT:
        tl.store(d_weights + program * width + i, d_w, mask=exists)


# ---- gated unit


def gated_unit(gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
    """act(gate)·up of [N, I] matrices, with act = SiLU or tanh-GELU."""
    out: Tensor = _gated_unit(gate, up, gelu)
    return out


class GatedUnit(torch.autograd.Function):
    """Keeps only its two inputs for the gradient.

    The two gradients lie side by side in one matrix.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.gelu = gelu
        return _gated(gate, up, gelu)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        return *_gated_grad(gate, up, grad, ctx.gelu), None


_gated_unit: Any = GatedUnit.apply


def _gated(gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
    rows, width = gate.shape
    out = torch.empty(rows, width, dtype=gate.dtype, device=gate.device)
    if rows:
        _gated_kernel[(rows, triton.cdiv(width, _GATED_BLOCK))](
            gate, up, out, width, gate.stride(0), up.stride(0), GELU=gelu, BLOCK=_GATED_BLOCK
        )
    return out


def _gated_grad(gate: Tensor, up: Tensor, grad: Tensor, gelu: bool) -> tuple[Tensor, ...]:
    rows, width = gate.shape
    both = torch.empty(rows, 2 * width, dtype=gate.dtype, device=gate.device)
    d_gate, d_up = both.chunk(2, 1)
    if rows:
        _gated_grad_kernel[(rows, triton.cdiv(width, _GATED_BLOCK))](
            gate,
            up,
            grad,
            d_gate,
            d_up,
            width,
            gate.stride(0),
            up.stride(0),
            grad.stride(0),
            2 * width,
            GELU=gelu,
            BLOCK=_GATED_BLOCK,
        )
    return d_gate, d_up


@triton.jit
def _act(x, GELU: tl.constexpr):
    """The activation and its derivative."""
    if GELU:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        t = 2 * tl.sigmoid(2 * inner) - 1
        value = 0.5 * x * (1 + t)
        slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (
            1 + 3 * 0.044715 * x * x
        )
        return value, slope
    else:
        s = tl.sigmoid(x)
        return x * s, s * (1 + x * (1 - s))


@triton.jit
def _gated_kernel(gate, up, out, width, gate_row, up_row, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = i < width
    g = tl.load(gate + row * gate_row + i, mask=exists, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_row + i, mask=exists, other=0.0).to(tl.float32)
    value, _ = _act(g, GELU)
    tl.store(out + row * width + i, value * u, mask=exists)


@triton.jit
def _gated_grad_kernel(
    gate,
    up,
    grad,
    d_gate,
    d_up,
    width,
    gate_row,
    up_row,
    grad_row,
    out_row,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = i < width
    d_out = tl.load(grad + row * grad_row + i, mask=exists, other=0.0).to(tl.float32)
    g = tl.load(gate + row * gate_row + i, mask=exists, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_row + i, mask=exists, other=0.0).to(tl.float32)
    value, slope = _act(g, GELU)
    tl.store(d_gate + row * out_row + i, d_out * slope * u, mask=exists)
    tl.store(d_up + row * out_row + i, d_out * value, mask=exists)


# ---- log-probs and entropy of logits


def token_stats(
    logits: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp(logits/T), log p(target) and entropy of logits [M, V], float32 [M] each."""
    rows, vocabulary = logits.shape
    log_sum, log_prob, entropy = torch.empty(3, rows, dtype=torch.float32, device=logits.device)
    if rows:
        _stats_kernel[(rows,)](
            logits,
            targets,
            log_sum,
            log_prob,
            entropy,
            1 / temperature,
            vocabulary,
            BLOCK=_VOCABULARY_BLOCK,
            num_warps=8,
        )
    return log_sum, log_prob, entropy


@triton.jit
def _stats_kernel(logits, targets, log_sums, log_probs, entropies, scale, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = -float("inf")
    mass = 0.0  # Σ e^(x−top)
    moment = 0.0  # Σ x·e^(x−top)
    for start in range(0, V, BLOCK):
        j = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + j, mask=j < V, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(top, tl.max(x, 0))
        weight = tl.exp(x - higher)
        shrink = tl.exp(top - higher)
        mass = mass * shrink + tl.sum(weight, 0)
        moment = moment * shrink + tl.sum(tl.where(j < V, x, 0.0) * weight, 0)
        top = higher
    log_sum = top + tl.log(mass)
    target = tl.load(targets + row)
    chosen = tl.load(logits + row * V + target).to(tl.float32) * scale
    tl.store(log_sums + row, log_sum)
    tl.store(log_probs + row, chosen - log_sum)
    tl.store(entropies + row, log_sum - moment / mass)


def token_grad(
    logits: Tensor,
    dtype: torch.dtype,
    targets: Tensor,
    temperature: float,
    log_sum: Tensor,
    entropy: Tensor,
    d_log_prob: Tensor,
    d_entropy: Tensor,
) -> Tensor:
    """Gradient with respect to the logits: dlogp·(1[target] − p)/T − dH·p·(log p + H)/T.

    Overwrites the logits if `dtype` is theirs.
    """
    rows, vocabulary = logits.shape
    out = logits
    if logits.dtype is not dtype:
        out = torch.empty(logits.shape, dtype=dtype, device=logits.device)
    if rows:
        _grad_kernel[(rows, triton.cdiv(vocabulary, _VOCABULARY_BLOCK))](
            logits,
            out,
            targets,
            log_sum,
            entropy,
            d_log_prob,
            d_entropy,
            1 / temperature,
            vocabulary,
            BLOCK=_VOCABULARY_BLOCK,
            num_warps=8,
        )
    return out


@triton.jit
def _grad_kernel(
    logits,
    out,
    targets,
    log_sums,
    entropies,
    d_log_probs,
    d_entropies,
    scale,
    V,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * V + j, mask=j < V, other=0.0).to(tl.float32) * scale
    log_p = x - tl.load(log_sums + row)
    p = tl.exp(log_p)
    is_target = tl.where(j == tl.load(targets + row), 1.0, 0.0)
    d_log_prob = tl.load(d_log_probs + row)
    d_entropy = tl.load(d_entropies + row)
    entropy = tl.load(entropies + row)
    grad = d_log_prob * (is_target - p) - d_entropy * p * (log_p + entropy)
    tl.store(out + row * V + j, grad * scale, mask=j < V)


# ---- compilation


def compile_ahead(
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    hidden: int,
    width: int,
    vocabulary: int,
    gelu: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Launches every kernel once on tiny inputs, all at the same time.

    A kernel's first launch compiles it, which takes most of a second. Threads compile them all.
    """

    def some(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def index(count: int = 2) -> Tensor:
        return some(count, dtype=torch.long)

    q = some(1, 2, heads, dim)
    k = some(1, 2, kv_heads, dim)
    cos = some(1, 2, dim)
    x = some(2, hidden)
    gate, up = some(2, 2 * width).chunk(2, 1)
    logits = some(2, vocabulary, dtype=torch.float32 if device.type == "cuda" else dtype)
    floats = some(2, dtype=torch.float32)
    flags = some(2, dtype=torch.int32)
    cache = some(2, 2, kv_heads, 16, dim)
    place = torch.tensor([16, 2, cache[0].data_ptr(), cache[1].data_ptr()], device=device)

    def sample() -> None:
        sample_tokens(
            logits,
            logits,
            number=index(),
            request=index(),
            token=index(),
            position=index(),
            step=index(),
            alive=flags,
            responses=some(2, 16, dtype=torch.long),
            log_probs=some(2, 16, dtype=torch.float32),
            ended=flags,
            stop=index(8),
            seed=index(1),
            noise=floats[:1],
            temperature=1.0,
        )

    def attend(rows: int) -> None:
        new = some(rows, kv_heads, dim)
        attend_cache(
            some(rows, heads, dim), new, new, place, 0, index(rows), index(rows), 1.0, None
        )

    launches: list[Callable[[], object]] = [
        lambda: _rotate(q.transpose(1, 2), k.transpose(1, 2), cos, cos, 1.0),
        lambda: _norm(x, None, x[0], 1e-6),
        lambda: _norm(x, x, x[0], 1e-6),
        lambda: _norm_grad(x, x[0], floats, x, None, True),
        lambda: _norm_grad(x, x[0], floats, x, x, True),
        lambda: _gated(gate, up, gelu),
        lambda: _gated_grad(gate, up, some(2, width), gelu),
        lambda: token_stats(logits, index(), 1.0),
        lambda: token_grad(logits.clone(), dtype, index(), 1.0, floats, floats, floats, floats),
        lambda: write_cache(k[0], k[0], place, 0, index(), index()),
        lambda: attend(2),
        lambda: attend(-(-FEW_PROGRAMS // kv_heads)),
        sample,
    ]
    with ThreadPoolExecutor(len(launches)) as pool:
        for launched in [pool.submit(launch) for launch in launches]:
            launched.result()
