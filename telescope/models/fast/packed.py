"""Forward passes without padding: rows one after the other, attention within each row.

Logits are computed only where they are needed. A model is run packed if its outputs then agree
with its own on padded rows (`enable`); otherwise it runs padded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from telescope.models.fast.fuse import fuse, unfuse

ATTENTION = "telescope"
_MAX_LOGITS = 2**26  # elements of the logits that exist at once; on a large GPU more
_log = logging.getLogger("telescope")

Numbers = NDArray[np.int64]


class Layout(Protocol):
    """How the tokens of a forward lie, which decides what each may attend to.

    Models pass it through to their attention.
    """

    rounds_once: bool
    """A layer may add its parts within a product: one pass less, and one rounding less than in
    training. For sampling, whose log-probs differ from those of training anyway."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attention of N tokens: q [N, H, D] over k and v [N, K, D], to [N, H, D]."""
        ...


class PackedRows:
    """Rows of the given lengths, one after the other.

    Made on the host; nothing waits for the device.
    """

    rounds_once = False

    def __init__(self, lengths: Sequence[int] | Numbers, device: torch.device) -> None:
        self.device = device
        self.lengths: Numbers = np.asarray(lengths, dtype=np.int64)  # [B]
        self.ends: Numbers = np.cumsum(self.lengths)  # [B]
        self.starts: Numbers = self.ends - self.lengths  # [B]
        self.longest = int(self.lengths.max(initial=0))
        self.equal = bool((self.lengths == self.longest).all())
        positions = np.arange(self.total) - np.repeat(self.starts, self.lengths)
        self.positions = self.to_device(positions)  # [N]
        self.bounds = self.to_device(np.concatenate([[0], self.ends])).to(torch.int32)  # [B+1]
        self._grid: tuple[Tensor, Tensor] | None = None

    @property
    def total(self) -> int:
        """The number of tokens, N."""
        return int(self.lengths.sum())

    def to_device(self, numbers: Numbers) -> Tensor:
        host = torch.from_numpy(np.ascontiguousarray(numbers))
        if self.device.type == "cuda":
            return host.pin_memory().to(self.device, non_blocking=True)
        return host

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Causal attention within each row; see `Layout`."""
        if not q.is_cuda or q.dtype is torch.float32:
            return self._attend_padded(q, k, v, scale, window)
        # What varlen_attn calls, but without its Python overhead and with grouped heads.
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q,
            k,
            v,
            self.bounds,
            self.bounds,
            self.longest,
            self.longest,
            0.0,  # dropout
            window is None,  # causal
            False,  # return_debug_mask
            scale=scale,
            window_size_left=-1 if window is None else window - 1,
            window_size_right=0,
        )[0]
        return out

    def _attend_padded(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """The same without the kernel: rows padded on the right, where the causal mask hides it."""
        rows = len(self.lengths)
        if not self.equal:
            fill, back = self._padding()
            # On a CPU `x[fill]` takes five times as long, and its backward twice.
            q, k, v = (x.index_select(0, fill) for x in (q, k, v))
        # [B·L, H, D] to [B, H, L, D]
        q, k, v = (x.view(rows, self.longest, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        mask = None
        if window is not None and window < self.longest:
            key = torch.arange(self.longest, device=q.device)
            query = key[:, None]
            mask = (key <= query) & (key > query - window)  # [L, L]
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        out = out.transpose(1, 2).reshape(rows * self.longest, *out.shape[1::2])  # [B·L, H, D]
        return out if self.equal else out.index_select(0, back)

    def _padding(self) -> tuple[Tensor, Tensor]:
        """Token of each place of the padded grid [B·L], and place of each token [N]."""
        if self._grid is None:
            column = np.arange(self.longest)[None, :]
            fill = np.minimum(self.starts[:, None] + column, self.total - 1)
            grid_starts = np.arange(len(self.lengths)) * self.longest
            back = np.arange(self.total) - np.repeat(self.starts - grid_starts, self.lengths)
            self._grid = (self.to_device(fill.reshape(-1)), self.to_device(back))
        return self._grid


def hidden_states(
    backbone: Any,
    ids: Tensor | None,
    positions: Tensor,
    layout: Layout,
    embeds: Tensor | None = None,
) -> Tensor:
    """Last hidden states [B·L, H] of tokens [B, L] or of their embeddings [B, L, H]."""
    tokens = {"input_ids": ids} if embeds is None else {"inputs_embeds": embeds}
    # transformers passes a 4D mask on as it is. Ours says nothing: the layout does.
    no_mask = torch.empty(1, 1, 1, 1, device=positions.device)
    out = backbone(
        **tokens, attention_mask=no_mask, position_ids=positions, use_cache=False, layout=layout
    )
    hidden: Tensor = out.last_hidden_state  # [B, L, H]
    return hidden.flatten(0, 1)


# ---- log-probs without all logits at once


def linear_log_probs(
    hidden: Tensor,
    head: nn.Linear,
    targets: Tensor,
    *,
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """log p(target) and entropy of softmax(head(hidden)/T), [M] each.

    hidden is [M, H], targets [M]. The logits [M, V] never exist all at once.
    """
    apply: Any = _LinearLogProbs.apply  # torch declares no types for it
    log_probs, entropy = apply(
        hidden, head.weight, head.bias, targets, temperature, entropy_gradient
    )
    return log_probs, entropy


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output layer: [M, H] to [M, V].

    On a GPU its sums are not rounded to bfloat16, which at |logit| = 16 would be steps of 0.125.
    """
    if hidden.is_cuda and hidden.dtype is torch.bfloat16:
        logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
        return logits if bias is None else logits.add_(bias)
    return F.linear(hidden, weight, bias)


class _LinearLogProbs(torch.autograd.Function):
    """Logits are computed chunk by chunk, and again for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        parts = []
        for some_hidden, some_targets in _chunks(weight, hidden, targets):
            logits = logits_of(some_hidden, weight, bias)
            parts.append(_stats(logits, some_targets, temperature))
        if parts:
            total, log_probs, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        else:
            total, log_probs, entropy = hidden.new_empty(3, 0).float()
        ctx.save_for_backward(hidden, weight, bias, targets, total, entropy)
        ctx.temperature = temperature
        ctx.entropy_gradient = entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_log_probs, d_entropy = grads
        hidden, weight, bias, targets, total, entropy = ctx.saved_tensors
        if not ctx.entropy_gradient:
            d_entropy = torch.zeros_like(entropy)
        d_hidden = torch.empty_like(hidden)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = torch.zeros_like(weight, dtype=torch.float32)
        d_bias = None
        if bias is not None and ctx.needs_input_grad[2]:
            d_bias = torch.zeros_like(bias)
        columns = (hidden, targets, total, entropy, d_log_probs, d_entropy, d_hidden)
        for h, target, log_sum, spread, d_log, d_spread, d_h in _chunks(weight, *columns):
            grad = _grad(
                logits_of(h, weight, bias),
                weight.dtype,
                target,
                ctx.temperature,
                log_sum,
                spread,
                d_log.contiguous(),
                d_spread.contiguous(),
            )
            torch.mm(grad, weight, out=d_h)
            if d_weight is not None:
                d_weight += grad.T @ h
            if d_bias is not None:
                d_bias += grad.sum(0)
        if d_weight is not None:
            d_weight = d_weight.to(weight.dtype)
        return d_hidden, d_weight, d_bias, None, None, None


def _chunks(weight: Tensor, *columns: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The columns [M, ...] in chunks, each of as many rows as logits may exist at once."""
    size = max(256, _max_logits(weight.device) // weight.shape[0])
    return zip(*(column.split(size) for column in columns), strict=True)


def _max_logits(device: torch.device) -> int:
    """How many logits may exist at once on this device."""
    if device.type != "cuda":
        return _MAX_LOGITS
    memory = torch.cuda.get_device_properties(device).total_memory
    return logits_at_once(int(memory * torch.cuda.get_per_process_memory_fraction(device)))


def logits_at_once(memory: int) -> int:
    """Float32 logits that take 1/128 of a GPU's memory, but at least `_MAX_LOGITS`.

    Each chunk adds to the whole gradient of the output layer, so a few large chunks are faster.
    All of the memory counts, not what is free of it: a run repeats itself bit for bit.
    """
    return max(_MAX_LOGITS, memory // (128 * 4))


def _stats(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp(logits/T), log p(target) and the entropy, [M] each."""
    if logits.is_cuda:
        from telescope.models.fast.kernels import token_stats

        return token_stats(logits, targets, temperature)
    log_p = (logits.float() / temperature).log_softmax(-1)  # [M, V]
    log_sum = logits[:, 0].float() / temperature - log_p[:, 0]
    log_prob = log_p.gather(1, targets[:, None]).squeeze(1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_sum, log_prob, entropy


def _grad(
    logits: Tensor,
    dtype: torch.dtype,
    targets: Tensor,
    temperature: float,
    log_sum: Tensor,
    entropy: Tensor,
    d_log_prob: Tensor,
    d_entropy: Tensor,
) -> Tensor:
    """The gradient with respect to the logits, [M, V]."""
    if logits.is_cuda:
        from telescope.models.fast.kernels import token_grad

        return token_grad(
            logits, dtype, targets, temperature, log_sum, entropy, d_log_prob, d_entropy
        )
    log_p = logits.float() / temperature - log_sum[:, None]
    p = log_p.exp()
    grad = -d_log_prob[:, None] * p - d_entropy[:, None] * p * (log_p + entropy[:, None])
    grad.scatter_add_(1, targets[:, None], d_log_prob[:, None])
    return (grad / temperature).to(dtype)


# ---- which models run packed


def enable(
    model: Any,
    *,
    compiled: bool = False,
    run: Callable[[Callable[[], Any]], Any] | None = None,
) -> bool:
    """Makes a backbone, or a causal LM, run packed if that does not change its outputs.

    On a GPU its small operations are fused too, unless it will be compiled. All ranks try a
    sharded model together, on the same rows; `run` is its `run_in_forward` (see
    models/parallel.py).
    """
    run = run or (lambda function: function())
    backbone = model.base_model
    head = model.get_output_embeddings()
    config = backbone.config
    own_attention = config._attn_implementation
    lengths = (7, 4)
    vocabulary = config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (sum(lengths),), generator=generator).to(model.device)
    packed = PackedRows(lengths, model.device)

    def padded_outputs() -> Tensor:
        rows = [model(input_ids=row[None], use_cache=False)[0][0] for row in ids.split(lengths)]
        return torch.cat(rows)

    def packed_outputs() -> Tensor:
        hidden = hidden_states(backbone, ids[None], packed.positions[None], packed)
        return hidden if head is None else head(hidden)

    def difference() -> float | str:
        """The relative difference, or what went wrong.

        An error must not leave the forward of a sharded model, which would stay half gathered.
        """
        try:
            if model.device.type == "cuda" and not compiled:
                fuse(backbone, own.dtype)
            config._attn_implementation = ATTENTION
            ours = packed_outputs().float()
            return float((ours - own.float()).norm() / own.float().norm())
        except Exception as error:  # a model's own code may raise anything
            return f"{type(error).__name__}: {error}".splitlines()[0]

    with torch.no_grad():
        own = run(padded_outputs) if head is None else padded_outputs()
        found = run(difference)
    limit = 0.05 if own.dtype is torch.bfloat16 else 1e-3
    if isinstance(found, float) and found <= limit:  # False for NaN
        return True
    config._attn_implementation = own_attention
    unfuse(backbone)
    problem = found if isinstance(found, str) else f"packed rows differ by {found:.2g}"
    _log.warning("%s runs with padded rows, which is slower (%s)", type(backbone).__name__, problem)
    return False


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: q [B, H, L, D] to [B, L, H, D]."""
    if layout is None:  # an ordinary padded call
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if kwargs.get("softcap") or kwargs.get("s_aux") is not None:
        raise NotImplementedError("attention with soft caps or sinks")
    batch, heads, length, dim = query.shape
    q, k, v = (x.transpose(1, 2).reshape(batch * length, -1, dim) for x in (query, key, value))
    window = kwargs.get("sliding_window")
    out = layout.attend(module.layer_idx, q, k, v, kwargs["scaling"], window)
    return out.view(batch, length, heads, dim), None


AttentionInterface.register(ATTENTION, torch.compiler.disable(_attention))
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
