"""The GPU's kernels, in Triton: what eager PyTorch does in many passes over memory, done in one.

Each computes in float32 and has a plain PyTorch twin in the tests, which run them in Triton's interpreter where there
is no GPU. Imported only where they are used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
import triton
import triton.language as tl
from torch import Tensor


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of q [B, H, L, D] and k [B, K, L, D] by cos, sin [B, L, D]."""
    if torch.is_grad_enabled() and q.requires_grad:
        return Rotary.apply(q, k, cos, sin)
    return _rotate(q, k, cos, sin, 1.0)


class Rotary(torch.autograd.Function):
    """Its gradient is the rotation back."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return _rotate(q, k, cos, sin, 1.0)

    @staticmethod
    def backward(ctx, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return *_rotate(dq, dk, cos, sin, -1.0), None, None


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    rows, heads, length, dim = q.shape
    if (rows > 1 and length > 1) or cos.shape[0] != rows:  # tokens must lie at even distances
        flat = [
            x.transpose(1, 2).reshape(1, rows * length, -1, dim).transpose(1, 2) for x in (q, k)
        ]
        angles = [x.expand(rows, length, dim).reshape(1, rows * length, dim) for x in (cos, sin)]
        out = _rotate(flat[0], flat[1], angles[0], angles[1], sign)
        q_out, k_out = (x.transpose(1, 2).view(rows, length, -1, dim).transpose(1, 2) for x in out)
        return q_out, k_out
    along = 2 if length > 1 else 0
    q_out = torch.empty(rows, length, heads, dim, dtype=q.dtype, device=q.device)
    k_out = torch.empty(rows, length, k.shape[1], dim, dtype=k.dtype, device=k.device)
    half = dim // 2
    _rotate_kernel[(rows * length,)](
        q, k, q_out, k_out, cos, sin, sign, q.stride(along), q.stride(1), k.stride(along), k.stride(1), cos.stride(1 if length > 1 else 0),
        Q=heads, K=k.shape[1], HALF=half, Q2=triton.next_power_of_2(heads), K2=triton.next_power_of_2(k.shape[1]),
        HALF2=triton.next_power_of_2(half),
    )  # fmt: skip
    return q_out.transpose(1, 2), k_out.transpose(1, 2)


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
    head, d = tl.arange(0, HEADS2)[:, None], tl.arange(0, HALF2)[None, :]
    here = (head < HEADS) & (d < HALF)
    x = tl.load(source + head * stride + d, mask=here, other=0.0).to(tl.float32)
    y = tl.load(source + head * stride + d + HALF, mask=here, other=0.0).to(tl.float32)
    tl.store(target + head * 2 * HALF + d, x * cos - y * sin, mask=here)
    tl.store(target + head * 2 * HALF + d + HALF, y * cos + x * sin, mask=here)


@triton.jit
def _rotate_kernel(
    q, k, q_out, k_out, cos, sin, sign, q_token, q_head, k_token, k_head, cos_token,
    Q: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr, Q2: tl.constexpr, K2: tl.constexpr, HALF2: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HALF2)[None, :]
    c = tl.load(cos + n * cos_token + d, mask=d < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + n * cos_token + d, mask=d < HALF, other=0.0).to(tl.float32) * sign
    _rotate_heads(q + n * q_token, q_out + n * Q * 2 * HALF, c, s, q_head, Q, Q2, HALF, HALF2)
    _rotate_heads(k + n * k_token, k_out + n * K * 2 * HALF, c, s, k_head, K, K2, HALF, HALF2)


def gated_unit(gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
    """act(gate)·up of [N, I] matrices, with act = SiLU or tanh-GELU."""
    if torch.is_grad_enabled() and gate.requires_grad:
        return GatedUnit.apply(gate, up, gelu)
    return _gated(gate, up, gelu)


class GatedUnit(torch.autograd.Function):
    """Keeps its two inputs for the gradient and nothing else. The two gradients lie side by side in one matrix."""

    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.gelu = gelu
        return _gated(gate, up, gelu)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        return *_gated_grad(gate, up, grad, ctx.gelu), None


def _gated(gate: Tensor, up: Tensor, gelu: bool) -> Tensor:
    rows, width = gate.shape
    out = torch.empty(rows, width, dtype=gate.dtype, device=gate.device)
    if rows:
        _gated_kernel[(rows, triton.cdiv(width, 512))](
            gate, up, out, width, gate.stride(0), up.stride(0), GELU=gelu, BLOCK=512
        )
    return out


def _gated_grad(gate: Tensor, up: Tensor, grad: Tensor, gelu: bool) -> tuple[Tensor, ...]:
    rows, width = gate.shape
    d_gate, d_up = torch.empty(rows, 2 * width, dtype=gate.dtype, device=gate.device).chunk(2, 1)
    if rows:
        _gated_grad_kernel[(rows, triton.cdiv(width, 512))](
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
            BLOCK=512,
        )
    return d_gate, d_up


@triton.jit
def _act(x, GELU: tl.constexpr):
    """The activation and its derivative."""
    if GELU:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        t = 2 * tl.sigmoid(2 * inner) - 1
        return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (
            1 + 3 * 0.044715 * x * x
        )
    else:
        s = tl.sigmoid(x)
        return x * s, s * (1 + x * (1 - s))


@triton.jit
def _gated_kernel(gate, up, out, width, gate_row, up_row, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value, _ = _act(
        tl.load(gate + row * gate_row + i, mask=i < width, other=0.0).to(tl.float32), GELU
    )
    tl.store(
        out + row * width + i,
        value * tl.load(up + row * up_row + i, mask=i < width, other=0.0).to(tl.float32),
        mask=i < width,
    )


@triton.jit
def _gated_grad_kernel(
    gate, up, grad, d_gate, d_up, width, gate_row, up_row, grad_row, out_row, GELU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(grad + row * grad_row + i, mask=i < width, other=0.0).to(tl.float32)
    value, slope = _act(
        tl.load(gate + row * gate_row + i, mask=i < width, other=0.0).to(tl.float32), GELU
    )
    other = tl.load(up + row * up_row + i, mask=i < width, other=0.0).to(tl.float32)
    tl.store(d_gate + row * out_row + i, g * slope * other, mask=i < width)
    tl.store(d_up + row * out_row + i, g * value, mask=i < width)


def token_stats(
    logits: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp(logits/T), log p(target) and the entropy of each row of logits [M, V], float32 [M] each, in one pass."""
    rows, vocabulary = logits.shape
    total, log_prob, entropy = torch.empty(3, rows, dtype=torch.float32, device=logits.device)
    if rows:
        _stats_kernel[(rows,)](
            logits,
            targets,
            total,
            log_prob,
            entropy,
            1 / temperature,
            vocabulary,
            BLOCK=4096,
            num_warps=8,
        )
    return total, log_prob, entropy


@triton.jit
def _stats_kernel(logits, targets, totals, log_probs, entropies, scale, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, mass, moment = -float("inf"), 0.0, 0.0  # Σ e^(x−top), Σ x·e^(x−top)
    for start in range(0, V, BLOCK):
        j = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + j, mask=j < V, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(top, tl.max(x, 0))
        weight = tl.exp(x - higher)
        shrink = tl.exp(top - higher)
        mass = mass * shrink + tl.sum(weight, 0)
        moment = moment * shrink + tl.sum(tl.where(j < V, x, 0.0) * weight, 0)
        top = higher
    total = top + tl.log(mass)
    chosen = tl.load(logits + row * V + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(totals + row, total)
    tl.store(log_probs + row, chosen - total)
    tl.store(entropies + row, total - moment / mass)


def token_grad(
    logits: Tensor,
    dtype: torch.dtype,
    targets: Tensor,
    temperature: float,
    total: Tensor,
    spread: Tensor,
    d_log: Tensor,
    d_spread: Tensor,
) -> Tensor:
    """Gradient with respect to the logits: dlogp·(1[target] − p)/T − dH·p·(log p + H)/T, `spread` being the entropy H.

    Overwrites the logits if `dtype` is theirs.
    """
    rows, vocabulary = logits.shape
    out = (
        logits
        if logits.dtype is dtype
        else torch.empty(logits.shape, dtype=dtype, device=logits.device)
    )
    if rows:
        _grad_kernel[(rows, triton.cdiv(vocabulary, 4096))](
            logits,
            out,
            targets,
            total,
            spread,
            d_log,
            d_spread,
            1 / temperature,
            vocabulary,
            BLOCK=4096,
            num_warps=8,
        )
    return out


@triton.jit
def _grad_kernel(
    logits, out, targets, totals, entropies, d_log_probs, d_entropies, scale, V, BLOCK: tl.constexpr
):
    row, j = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    log_p = tl.load(logits + row * V + j, mask=j < V, other=0.0).to(tl.float32) * scale - tl.load(
        totals + row
    )
    p, g = tl.exp(log_p), tl.load(d_log_probs + row)
    hit = tl.where(j == tl.load(targets + row), 1.0, 0.0)
    grad = g * (hit - p) - tl.load(d_entropies + row) * p * (log_p + tl.load(entropies + row))
    tl.store(out + row * V + j, grad * scale, mask=j < V)


def write_cache(
    k: Tensor, v: Tensor, place: Tensor, layer: int, slots: Tensor, positions: Tensor
) -> None:
    """Puts k, v [N, K, D] of N tokens into the cache, each at its slot and position. See `attend_cache` for `place`."""
    tokens, heads, dim = k.shape
    _write_kernel[(tokens,)](
        k, v, place, layer, slots, positions, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        K=heads, D=dim, K2=triton.next_power_of_2(heads), D2=triton.next_power_of_2(dim),
    )  # fmt: skip


@triton.jit
def _cache_of(like, place, layer, slot, K: tl.constexpr, D: tl.constexpr):
    """Where a slot's keys and values begin, and the length of a slot."""
    length = tl.load(place)
    keys = tl.load(place + 2 + 2 * layer).to(like.dtype) + slot * K * length * D
    values = tl.load(place + 3 + 2 * layer).to(like.dtype) + slot * K * length * D
    return keys, values, length


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["slots", "positions"])
def _write_kernel(
    k, v, place, layer, slots, positions, k_token, k_head, v_token, v_head,
    K: tl.constexpr, D: tl.constexpr, K2: tl.constexpr, D2: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    keys, values, length = _cache_of(k, place, layer, tl.load(slots + n), K, D)
    head, d = tl.arange(0, K2)[:, None], tl.arange(0, D2)[None, :]
    here = (head < K) & (d < D)
    to = (head * length + tl.load(positions + n)) * D + d
    tl.store(keys + to, tl.load(k + n * k_token + head * k_head + d, mask=here), mask=here)
    tl.store(values + to, tl.load(v + n * v_token + head * v_head + d, mask=here), mask=here)


def attend_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    place: Tensor,
    layer: int,
    slots: Tensor,
    positions: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """One new token per row: q [N, H, D] attends to its slot's cache and to itself; k, v [N, K, D] join the cache.

    `place` holds the cache's slot length, its number of slots, and the address of each layer's keys and values, [slots, K, length, D].
    It is read on the device, so that a captured graph outlives the cache it was captured with.
    """
    rows, heads, dim = q.shape
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    kv_heads = k.shape[1]
    _attend_kernel[(rows, kv_heads)](
        q, k, v, out, place, layer, slots, positions, scale, window or (1 << 30),
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        K=kv_heads, G=heads // kv_heads, D=dim, G2=max(16, triton.next_power_of_2(heads // kv_heads)),
        D2=max(16, triton.next_power_of_2(dim)), BLOCK=64, num_warps=1 if dim <= 64 else 4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["slots", "positions"])
def _attend_kernel(
    q, k, v, out, place, layer, slots, positions, scale, window, q_row, q_head, k_row, k_head, v_row, v_head,
    K: tl.constexpr, G: tl.constexpr, D: tl.constexpr, G2: tl.constexpr, D2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    keys, values, length = _cache_of(k, place, layer, tl.load(slots + row), K, D)
    keys += head * length * D
    values += head * length * D
    g, d, n = tl.arange(0, G2), tl.arange(0, D2), tl.arange(0, BLOCK)
    mine = (g < G)[:, None] & (d < D)[None, :]
    query = tl.load(
        q + row * q_row + (head * G + g)[:, None] * q_head + d[None, :], mask=mine, other=0.0
    )
    new_key = tl.load(k + row * k_row + head * k_head + d, mask=d < D, other=0.0)
    new_value = tl.load(v + row * v_row + head * v_head + d, mask=d < D, other=0.0)
    tl.store(keys + position * D + d, new_key, mask=d < D)
    tl.store(values + position * D + d, new_value, mask=d < D)

    scale *= 1.4426950408889634  # powers of two from here on
    top = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale  # [G]
    mass = tl.full([G2], 1.0, tl.float32)
    total = tl.zeros([G2, D2], tl.float32) + new_value.to(tl.float32)[None, :]
    first = tl.maximum(position - window + 1, 0)
    for start in range(first, position, BLOCK):
        at = start + n
        there = (at < position)[:, None] & (d < D)[None, :]
        key = tl.load(keys + at[:, None] * D + d[None, :], mask=there, other=0.0)
        value = tl.load(
            values + at[:, None] * D + d[None, :], mask=there, other=0.0
        )  # on its way while the scores are made
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale  # [G, BLOCK]
        score = tl.where((at < position)[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        mass = mass * shrink + tl.sum(weight, 1)
        total = total * shrink[:, None] + tl.dot(
            weight.to(value.dtype), value, input_precision="ieee"
        )
        top = higher
    tl.store(
        out + (row * K * G + head * G + g[:, None]) * D + d[None, :],
        total / mass[:, None],
        mask=mine,
    )


def sample_tokens(
    logits: Tensor, allowed: Tensor, number: Tensor, request: Tensor, token: Tensor, position: Tensor, step: Tensor, alive: Tensor,
    responses: Tensor, log_probs: Tensor, ended: Tensor, stop: Tensor, seed: Tensor, noise: Tensor, temperature: float,
) -> None:  # fmt: skip
    """Draws the next token of every row from softmax(allowed/T), and moves the row's state on, in place.

    The largest of logit + Gumbel noise is an exact draw; the noise is a function of (seed, number, step, token id), so a
    response does not depend on which rows it shares a batch with. It is written into row `request` of `responses`. With
    `noise` 0 the likeliest token is taken. The log-probability is that under all of `logits` at temperature T. A row that
    is not alive stays as it is.
    """
    rows, vocabulary = logits.shape
    _sample_kernel[(rows,)](
        logits, allowed, number, request, token, position, step, alive, responses, log_probs, ended, stop, seed, noise, 1 / temperature,
        vocabulary, responses.shape[1], SAME=logits is allowed, STOPS=stop.shape[0], BLOCK=2048, num_warps=8,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["LIMIT"],
    do_not_specialize_on_alignment=[
        "numbers",
        "requests",
        "tokens",
        "positions",
        "steps",
        "alives",
    ],
)
def _sample_kernel(
    logits, allowed, numbers, requests, tokens, positions, steps, alives, responses, log_probs, ended, stop, seeds, noises, scale,
    V, LIMIT, SAME: tl.constexpr, STOPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(alives + row) != 0:
        number, request, step = (
            tl.load(numbers + row),
            tl.load(requests + row),
            tl.load(steps + row),
        )
        seed, noise = tl.load(seeds), tl.load(noises)
        top, mass = -float("inf"), 0.0
        best, token = -float("inf"), 0
        for start in range(0, V, BLOCK):
            j = start + tl.arange(0, BLOCK)
            x = (
                tl.load(logits + row * V + j, mask=j < V, other=-float("inf")).to(tl.float32)
                * scale
            )
            higher = tl.maximum(top, tl.max(x, 0))
            mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
            top = higher
            if not SAME:
                x = (
                    tl.load(allowed + row * V + j, mask=j < V, other=-float("inf")).to(tl.float32)
                    * scale
                )
            bits, _, _, _ = tl.philox(
                seed, j, j * 0 + step.to(tl.int32), j * 0 + number.to(tl.int32), j * 0
            )
            u = (bits.to(tl.uint32, bitcast=True) >> 1).to(
                tl.float32
            ) * 4.6566127342e-10 + 2.3e-10  # fine near 0
            wait = tl.where(
                u < 1e-3, u * (1 + 0.5 * u), -tl.log(tl.maximum(1 - u, 1e-30))
            )  # exponential: −log(1 − u)
            score = x - noise * tl.log(wait)
            highest = tl.max(score, 0)
            if highest > best:
                best = highest
                token = start + tl.argmax(score, 0)
        chosen = tl.load(logits + row * V + token).to(tl.float32) * scale
        tl.store(responses + request * LIMIT + step, token)
        tl.store(log_probs + request * LIMIT + step, chosen - top - tl.log(mass))
        stopped = tl.sum((tl.load(stop + tl.arange(0, STOPS)) == token).to(tl.int32), 0) > 0
        if stopped:
            tl.store(ended + request, 1)
        if stopped | (step + 1 >= LIMIT):
            tl.store(alives + row, 0)
        else:
            tl.store(tokens + row, token)
            tl.store(positions + row, tl.load(positions + row) + 1)
        tl.store(steps + row, step + 1)


def compile_ahead(
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    width: int,
    vocabulary: int,
    gelu: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Launches every kernel once on next to nothing, all at the same time.

    A kernel's first launch compiles it, which takes most of a second; so they share the CPU's cores.
    """

    def some(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    def index(count: int = 2) -> Tensor:
        return some(count, dtype=torch.long)

    q, k = some(1, 2, heads, dim), some(1, 2, kv_heads, dim)
    cos, hidden, logits = (
        some(1, 2, dim),
        some(2, 2 * width),
        some(2, vocabulary, dtype=torch.float32 if device.type == "cuda" else dtype),
    )
    gate, up = hidden.chunk(2, 1)
    floats, cache = some(2, dtype=torch.float32), some(2, 2, kv_heads, 16, dim)
    place = torch.tensor([16, 2, cache[0].data_ptr(), cache[1].data_ptr()], device=device)
    flags, answers = (
        some(2, dtype=torch.int32),
        (some(2, 16, dtype=torch.long), some(2, 16, dtype=torch.float32)),
    )
    launches = [
        lambda: _rotate(q.transpose(1, 2), k.transpose(1, 2), cos, cos, 1.0),
        lambda: _gated(gate, up, gelu),
        lambda: _gated_grad(gate, up, some(2, width), gelu),
        lambda: token_stats(logits, index(), 1.0),
        lambda: token_grad(logits.clone(), dtype, index(), 1.0, floats, floats, floats, floats),
        lambda: write_cache(k[0], k[0], place, 0, index(), index()),
        lambda: attend_cache(q[0], k[0], k[0], place, 0, index(), index(), 1.0, None),
        lambda: sample_tokens(
            logits, logits, index(), index(), index(), index(), index(), flags, *answers, flags, index(8), index(1), floats[:1], 1.0
        ),
    ]  # fmt: skip
    with ThreadPoolExecutor(len(launches)) as pool:
        for launched in [pool.submit(launch) for launch in launches]:
            launched.result()
