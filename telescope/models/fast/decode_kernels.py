"""The GPU's kernels for decoding, in Triton: attention over a KV cache, and sampling.

As in kernels.py, each computes in float32 and has a plain PyTorch twin in the tests.
"""

# Triton's arguments are pointers and compile-time constants, which Python's types do not describe.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SAMPLE_LANES = 1024
"""Tokens of the vocabulary that one program looks at side by side when it samples."""
FEW_PROGRAMS = 256
"""With fewer rows × heads, attention over the cache works with more warps each."""


# ---- attention over a KV cache


def write_cache(
    k: Tensor, v: Tensor, place: Tensor, layer: int, slots: Tensor, positions: Tensor
) -> None:
    """Writes k, v [N, K, D] of N tokens into the cache, each at its slot and position.

    See `attend_cache` for `place`.
    """
    tokens, heads, dim = k.shape
    _write_kernel[(tokens,)](
        k,
        v,
        place,
        layer,
        slots,
        positions,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        K=heads,
        D=dim,
        K2=triton.next_power_of_2(heads),
        D2=triton.next_power_of_2(dim),
    )


@triton.jit
def _cache_of(like, place, layer, slot, K: tl.constexpr, D: tl.constexpr):
    """Where a slot's keys and values begin, and the length of a slot."""
    length = tl.load(place)
    keys = tl.load(place + 2 + 2 * layer).to(like.dtype) + slot * K * length * D
    values = tl.load(place + 3 + 2 * layer).to(like.dtype) + slot * K * length * D
    return keys, values, length


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["slots", "positions"])
def _write_kernel(
    k,
    v,
    place,
    layer,
    slots,
    positions,
    k_token,
    k_head,
    v_token,
    v_head,
    K: tl.constexpr,
    D: tl.constexpr,
    K2: tl.constexpr,
    D2: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    keys, values, length = _cache_of(k, place, layer, tl.load(slots + n), K, D)
    head = tl.arange(0, K2)[:, None]
    d = tl.arange(0, D2)[None, :]
    exists = (head < K) & (d < D)
    key = tl.load(k + n * k_token + head * k_head + d, mask=exists)
    value = tl.load(v + n * v_token + head * v_head + d, mask=exists)
    target = (head * length + tl.load(positions + n)) * D + d
    tl.store(keys + target, key, mask=exists)
    tl.store(values + target, value, mask=exists)


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
    """One new token per row: q [N, H, D] attends to its slot's cache and to itself.

    k, v [N, K, D] join the cache. `place` holds the cache's slot length, its number of slots, and
    the addresses of each layer's keys and values, [slots, K, length, D]. It is read on the device,
    so that a captured graph outlives the cache it was captured with.
    """
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    block, warps = _attend_shape(rows * kv_heads, dim, q.dtype)
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    _attend_kernel[(rows, kv_heads)](
        q,
        k,
        v,
        out,
        place,
        layer,
        slots,
        positions,
        scale,
        window or (1 << 30),
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        K=kv_heads,
        G=group,
        D=dim,
        G2=max(16, triton.next_power_of_2(group)),
        D2=max(16, triton.next_power_of_2(dim)),
        BLOCK=block,
        num_warps=warps,
    )
    return out


def _attend_shape(programs: int, dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Tokens that a program looks at side by side, and its warps.

    Many programs fill the GPU with one or two warps each. A few need more to be quick. Measured on
    an H200: docs/log.md, «Attention over the cache».
    """
    if dtype is torch.float32 and dim > 64:  # smaller blocks fit a small card's shared memory
        return max(16, 4096 // triton.next_power_of_2(dim)), 2
    if dim > 64:
        return 64, 2
    if programs < FEW_PROGRAMS and dtype is not torch.float32:
        return 128, 4
    return 64, 1


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["slots", "positions"])
def _attend_kernel(
    q,
    k,
    v,
    out,
    place,
    layer,
    slots,
    positions,
    scale,
    window,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    K: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    G2: tl.constexpr,
    D2: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + row)
    keys, values, length = _cache_of(k, place, layer, tl.load(slots + row), K, D)
    keys += head * length * D
    values += head * length * D
    g = tl.arange(0, G2)
    d = tl.arange(0, D2)
    n = tl.arange(0, BLOCK)
    in_group = (g < G)[:, None] & (d < D)[None, :]
    from_query = q + row * q_row + (head * G + g)[:, None] * q_head + d[None, :]
    query = tl.load(from_query, mask=in_group, other=0.0)
    new_key = tl.load(k + row * k_row + head * k_head + d, mask=d < D, other=0.0)
    new_value = tl.load(v + row * v_row + head * v_head + d, mask=d < D, other=0.0)
    tl.store(keys + position * D + d, new_key, mask=d < D)
    tl.store(values + position * D + d, new_value, mask=d < D)

    scale *= 1.4426950408889634  # log2(e): powers of two from here on
    top = tl.sum(query.to(tl.float32) * new_key.to(tl.float32)[None, :], 1) * scale  # [G]
    mass = tl.full([G2], 1.0, tl.float32)
    total = tl.zeros([G2, D2], tl.float32) + new_value.to(tl.float32)[None, :]
    first = tl.maximum(position - window + 1, 0)
    for start in range(first, position, BLOCK):
        at = start + n
        exists = (at < position)[:, None] & (d < D)[None, :]
        key = tl.load(keys + at[:, None] * D + d[None, :], mask=exists, other=0.0)
        # Loaded here, the values are on their way while the scores are computed.
        value = tl.load(values + at[:, None] * D + d[None, :], mask=exists, other=0.0)
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
    to_out = out + (row * K * G + head * G + g[:, None]) * D + d[None, :]
    tl.store(to_out, total / mass[:, None], mask=in_group)


# ---- sampling


def sample_tokens(
    logits: Tensor,
    allowed: Tensor,
    number: Tensor,
    request: Tensor,
    token: Tensor,
    position: Tensor,
    step: Tensor,
    alive: Tensor,
    responses: Tensor,
    log_probs: Tensor,
    ended: Tensor,
    stop: Tensor,
    seed: Tensor,
    noise: Tensor,
    temperature: float,
) -> None:
    """Draws the next token of every row from softmax(allowed/T), and advances the row's state.

    The largest of logit + Gumbel noise is an exact draw. The noise is a function of (seed, number,
    step, token id), so a response does not depend on which rows it shares a batch with. It is
    written into row `request` of `responses`. With `noise` 0 the likeliest token is taken. The
    log-probability is that under all of `logits` at temperature T. A row that is not alive stays
    as it is.
    """
    rows, vocabulary = logits.shape
    _sample_kernel[(rows,)](
        logits,
        allowed,
        number,
        request,
        token,
        position,
        step,
        alive,
        responses,
        log_probs,
        ended,
        stop,
        seed,
        noise,
        1 / temperature,
        vocabulary,
        responses.shape[1],
        SAME=logits is allowed,
        STOPS=stop.shape[0],
        LANES=_SAMPLE_LANES,
        num_warps=8,
    )


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
    logits,
    allowed,
    numbers,
    requests,
    tokens,
    positions,
    steps,
    alives,
    responses,
    log_probs,
    ended,
    stop,
    seeds,
    noises,
    scale,
    V,
    LIMIT,
    SAME: tl.constexpr,
    STOPS: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(alives + row) != 0:
        number = tl.load(numbers + row)
        request = tl.load(requests + row)
        step = tl.load(steps + row)
        seed = tl.load(seeds)
        noise = tl.load(noises)
        # Each lane keeps what it has seen of its own tokens; the lanes are compared once, at the
        # end. −1e30 instead of −inf: the difference of two −inf would be NaN.
        lane = tl.arange(0, LANES)
        tops = tl.full([LANES], -1e30, tl.float32)
        masses = tl.zeros([LANES], tl.float32)  # Σ e^(x−top)
        bests = tl.full([LANES], -float("inf"), tl.float32)
        winners = tl.zeros([LANES], tl.int32)
        for start in range(0, V, 4 * LANES):
            counter = start + lane
            zero = lane * 0
            # One call gives four random numbers: one for each of the next four tokens of a lane.
            bits0, bits1, bits2, bits3 = tl.philox(
                seed, counter, zero + step.to(tl.int32), zero + number.to(tl.int32), zero
            )
            for part in tl.static_range(4):
                j = start + part * LANES + lane
                x = tl.load(logits + row * V + j, mask=j < V, other=-float("inf"))
                x = x.to(tl.float32) * scale
                smaller = tl.exp(-tl.abs(x - tops))
                masses = tl.where(x > tops, masses * smaller + 1, masses + smaller)
                tops = tl.maximum(tops, x)
                if not SAME:
                    x = tl.load(allowed + row * V + j, mask=j < V, other=-float("inf"))
                    x = x.to(tl.float32) * scale
                if part == 0:
                    bits = bits0
                elif part == 1:
                    bits = bits1
                elif part == 2:
                    bits = bits2
                else:
                    bits = bits3
                # Uniform in (0, 1), then exponential: −log(1 − u), with a series near 0.
                u = (bits.to(tl.uint32, bitcast=True) >> 1).to(tl.float32)
                u = u * 4.6566127342e-10 + 2.3e-10
                wait = tl.where(u < 1e-3, u * (1 + 0.5 * u), -tl.log(tl.maximum(1 - u, 1e-30)))
                score = x - noise * tl.log(wait)
                winners = tl.where(score > bests, j, winners)
                bests = tl.maximum(bests, score)
        top = tl.max(tops, 0)
        mass = tl.sum(masses * tl.exp(tops - top), 0)
        token = tl.min(tl.where(bests == tl.max(bests, 0), winners, V), 0)
        token = tl.where(token < V, token, 0)  # logits that are NaN have no largest
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
