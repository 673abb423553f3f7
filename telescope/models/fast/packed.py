"""Padding-free forward passes: rows one after the other, attention within each row, logits only where they are needed.

A model takes part if its outputs, packed, agree with its own on padded rows (`enable`); any other runs padded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from telescope.models.fast.fuse import fuse, unfuse

ATTENTION = "telescope"
_LOGITS = 2**26  # elements of the logits that exist at once
_log = logging.getLogger("telescope")


class Layout(Protocol):
    """How tokens of a forward lie, and so what each may attend to. Models hand it through to their attention."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """q [N, H, D], k and v [N, K, D] of the N tokens to what each has attended to, [N, H, D]."""
        ...


class Packed:
    """Rows of the given lengths one after the other. Made on the host; nothing waits for the device."""

    def __init__(self, lengths: Sequence[int] | np.ndarray, device: torch.device) -> None:
        self.lengths, self.device = np.asarray(lengths, dtype=np.int64), device
        self.ends = np.cumsum(self.lengths)
        self.starts = self.ends - self.lengths
        self.longest = int(self.lengths.max(initial=0))
        self.equal = bool((self.lengths == self.longest).all())
        self.positions = self.to_device(
            np.arange(self.total) - np.repeat(self.starts, self.lengths)
        )
        self.bounds = self.to_device(np.concatenate([[0], self.ends])).to(torch.int32)
        self._grid: tuple[Tensor, Tensor] | None = None

    @property
    def total(self) -> int:
        return int(self.lengths.sum())

    def to_device(self, numbers: np.ndarray) -> Tensor:
        host = torch.from_numpy(np.ascontiguousarray(numbers))
        return (
            host.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else host
        )

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        if q.is_cuda and q.dtype is not torch.float32:
            # what varlen_attn calls, without its detour through Python, and with key-value heads as they are
            left, bounds, longest = -1 if window is None else window - 1, self.bounds, self.longest
            out: Tensor = torch.ops.aten._flash_attention_forward(
                q, k, v, bounds, bounds, longest, longest, 0.0, window is None, False,
                scale=scale, window_size_left=left, window_size_right=0,
            )[0]  # fmt: skip
            return out
        return self._attend_padded(q, k, v, scale, window)

    def _attend_padded(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """The same without a kernel for it: padded on the right, where a causal mask hides what is not there."""
        rows = len(self.lengths)
        if not self.equal:
            fill, back = self._padding()
            q, k, v = (x[fill] for x in (q, k, v))
        q, k, v = (
            x.view(rows, self.longest, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
        )  # [B, H, L, D]
        mask = None
        if window is not None and window < self.longest:
            at = torch.arange(self.longest, device=q.device)
            mask = (at <= at[:, None]) & (at > at[:, None] - window)
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
        out = out.transpose(1, 2).reshape(rows * self.longest, *out.shape[1::2])  # [B·L, H, D]
        return out if self.equal else out[back]

    def _padding(self) -> tuple[Tensor, Tensor]:
        """Token of each place of the padded grid, and place of each token."""
        if self._grid is None:
            column = np.arange(self.longest)[None, :]
            fill = np.minimum(self.starts[:, None] + column, self.total - 1)
            back = np.arange(self.total) - np.repeat(
                self.starts - np.arange(len(self.lengths)) * self.longest, self.lengths
            )
            self._grid = self.to_device(fill.reshape(-1)), self.to_device(back)
        return self._grid


def hidden_states(
    backbone: Any,
    ids: Tensor | None,
    positions: Tensor,
    layout: Layout,
    embeds: Tensor | None = None,
) -> Tensor:
    """Last hidden states of tokens [B, L], or of their embeddings, whose attention is the layout's: [B·L, hidden]."""
    no_mask = torch.empty(
        1, 1, 1, 1, device=positions.device
    )  # a finished mask is taken as it is; ours is the layout
    tokens = {"input_ids": ids} if embeds is None else {"inputs_embeds": embeds}
    out = backbone(
        **tokens, attention_mask=no_mask, position_ids=positions, use_cache=False, layout=layout
    )
    return out.last_hidden_state.flatten(0, 1)


def linear_log_probs(
    hidden: Tensor,
    head: nn.Linear,
    targets: Tensor,
    *,
    temperature: float,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """log p(target) and entropy of softmax(head(hidden)/T), [M] each, without ever holding all logits [M, V]."""
    return _LinearLogProbs.apply(
        hidden, head.weight, head.bias, targets, temperature, entropy_gradient
    )


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The output layer, [M, V]. On a GPU its sums are not rounded to bfloat16, which at |logit| = 16 would be steps of 0.125."""
    if hidden.is_cuda and hidden.dtype is torch.bfloat16:
        logits = torch.mm(hidden, weight.T, out_dtype=torch.float32)
        return logits if bias is None else logits.add_(bias)
    return F.linear(hidden, weight, bias)


class _LinearLogProbs(torch.autograd.Function):
    """Logits are made chunk by chunk, and made again for the gradient."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, temperature, entropy_gradient):
        parts = [
            _stats(logits_of(h, weight, bias), t, temperature)
            for h, t in _chunks(weight, hidden, targets)
        ]
        total, log_probs, entropy = (
            (torch.cat(part) for part in zip(*parts, strict=True))
            if parts
            else hidden.new_empty(3, 0).float()
        )
        ctx.save_for_backward(hidden, weight, bias, targets, total, entropy)
        ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return log_probs, entropy

    @staticmethod
    def backward(ctx, d_log_probs, d_entropy):
        hidden, weight, bias, targets, total, entropy = ctx.saved_tensors
        d_entropy = d_entropy if ctx.entropy_gradient else torch.zeros_like(entropy)
        d_hidden = torch.empty_like(hidden)
        d_weight = (
            torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        )
        d_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for h, t, all_, e, dl, de, dh in _chunks(
            weight, hidden, targets, total, entropy, d_log_probs, d_entropy, d_hidden
        ):
            grad = _grad(
                logits_of(h, weight, bias),
                weight.dtype,
                t,
                ctx.temperature,
                all_,
                e,
                dl.contiguous(),
                de.contiguous(),
            )
            torch.mm(grad, weight, out=dh)
            if d_weight is not None:
                d_weight += grad.T @ h
            if d_bias is not None:
                d_bias += grad.sum(0)
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            d_bias,
            None,
            None,
            None,
        )


def _chunks(weight: Tensor, *columns: Tensor) -> Any:
    size = max(256, _LOGITS // weight.shape[0])
    return zip(*(column.split(size) for column in columns), strict=True)


def _stats(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    if logits.is_cuda:
        from telescope.models.fast.kernels import token_stats

        return token_stats(logits, targets, temperature)
    log_p = (logits.float() / temperature).log_softmax(-1)
    total = logits[:, 0].float() / temperature - log_p[:, 0]
    return total, log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def _grad(
    logits: Tensor,
    dtype: torch.dtype,
    targets: Tensor,
    temperature: float,
    total: Tensor,
    spread: Tensor,
    d_log: Tensor,
    d_spread: Tensor,
) -> Tensor:
    """Gradient with respect to the logits."""
    if logits.is_cuda:
        from telescope.models.fast.kernels import token_grad

        return token_grad(logits, dtype, targets, temperature, total, spread, d_log, d_spread)
    log_p = logits.float() / temperature - total[:, None]
    p = log_p.exp()
    grad = -d_log[:, None] * p - d_spread[:, None] * p * (log_p + spread[:, None])
    grad.scatter_add_(1, targets[:, None], d_log[:, None])
    return (grad / temperature).to(dtype)


def enable(
    model: Any, *, compiled: bool = False, within: Callable[[Callable[[], Any]], Any] | None = None
) -> bool:
    """Makes a backbone, or the causal LM around one, ready for packed rows if that does not change what it computes.

    A sliced model is tried by all processes together, on the same rows; its parts compute `within` the whole (see models/parallel.py).
    """
    backbone, head = model.base_model, model.get_output_embeddings()
    config = backbone.config
    before = config._attn_implementation
    lengths, vocabulary = (7, 4), config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(0)).to(
        model.device
    )
    packed = Packed(lengths, model.device)
    within = within or (lambda function: function())

    def padded() -> Tensor:
        return torch.cat(
            [model(input_ids=row[None], use_cache=False)[0][0] for row in ids.split(lengths)]
        )

    def difference() -> float | str:
        """Or what went wrong: an error must not leave the forward of a sliced model, which would stay half gathered."""
        try:
            if model.device.type == "cuda" and not compiled:
                fuse(backbone, own.dtype)
            config._attn_implementation = ATTENTION
            ours = hidden_states(backbone, ids[None], packed.positions[None], packed)
            ours = (ours if head is None else head(ours)).float()
            return float((ours - own.float()).norm() / own.float().norm())
        except Exception as error:  # whatever a model's code may raise: it is not made for this
            return f"{type(error).__name__}: {error}".splitlines()[0]

    with torch.no_grad():
        own = within(padded) if head is None else padded()
        found = within(difference)
    problem = found if isinstance(found, str) else f"packed rows differ by {found:.2g}"
    if isinstance(found, float) and found <= (
        0.05 if own.dtype is torch.bfloat16 else 1e-3
    ):  # not if it is NaN
        return True
    config._attn_implementation = before
    unfuse(backbone)
    _log.warning("%s runs with padded rows, which is slower (%s)", type(backbone).__name__, problem)
    return False


@torch.compiler.disable
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
    out = layout.attend(module.layer_idx, q, k, v, kwargs["scaling"], kwargs.get("sliding_window"))
    return out.view(batch, length, heads, dim), None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
