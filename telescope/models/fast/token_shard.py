"""Sequence parallelism: S ranks share the tokens of packed rows.

Each rank holds 1/S of the tokens, one after the other. What a model computes per token needs no
other rank. For attention the ranks exchange tokens for heads, and back afterwards: in between, a
rank has all tokens, but only 1/S of the heads (DeepSpeed-Ulysses, Jacobs et al. 2023,
arXiv:2309.14509).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from telescope.errors import TelescopeError
from telescope.models.fast.packed import Numbers, PackedRows, hidden_states
from telescope.models.parallel import run_in_forward
from telescope.models.sequence import SequenceGroup


class TokenShard:
    """This rank's share of the N tokens of packed rows.

    All shares are equally long, c = ⌈N/S⌉. So up to S·c − N places of the last ones are padding.
    """

    rounds_once = False

    def __init__(self, rows: PackedRows, group: SequenceGroup) -> None:
        self.rows = rows
        self.group = group
        self.size = -(-rows.total // group.size)  # c
        self.first = group.rank * self.size
        tokens = np.minimum(self.first + np.arange(self.size), rows.total - 1)
        self.tokens = rows.to_device(tokens)  # [c] the token of each place
        self.positions = rows.positions[self.tokens]  # [c]

    def own(self, tokens: Numbers) -> tuple[Tensor, Tensor]:
        """Of some tokens' numbers [M]: places of this rank's in its share [m], and in the [M]."""
        chosen = ((tokens >= self.first) & (tokens < self.first + self.size)).nonzero()[0]
        return self.rows.to_device(tokens[chosen] - self.first), self.rows.to_device(chosen)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Causal attention within each row: q [c, H, D] over k and v [c, K, D]; see `Layout`."""
        ranks = self.group.size
        heads = q.shape[1]
        if heads % ranks:
            raise TelescopeError(
                f"ray.sequence_parallel_size = {ranks} does not divide the model's {heads} "
                f"attention heads: use a divisor of {heads}"
            )
        # K/V heads are repeated until they divide too; query heads stay with theirs.
        copies = math.lcm(k.shape[1], ranks) // k.shape[1]
        if copies > 1:
            k, v = (x.repeat_interleave(copies, 1) for x in (k, v))
        # [c, S, (H + 2K)/S, D]: what each rank gets lies together, so one exchange does for all.
        parts = [x.unflatten(1, (ranks, -1)) for x in (q, k, v)]
        sizes = [part.shape[2] for part in parts]
        exchanged = self.group.exchange(torch.cat(parts, 2).transpose(0, 1))  # [S, c, ...]
        tokens = exchanged.flatten(0, 1)[: self.rows.total]  # [N, (H + 2K)/S, D]
        q, k, v = (part.contiguous() for part in tokens.split(sizes, 1))
        out = self.rows.attend(layer, q, k, v, scale, window)  # [N, H/S, D]
        out = F.pad(out, (0, 0, 0, 0, 0, ranks * self.size - self.rows.total))
        back = self.group.exchange(out.unflatten(0, (ranks, self.size)))  # [S, c, H/S, D]
        return back.transpose(0, 1).flatten(1, 2)  # [c, H, D]


def share_tokens(model: Any, group: SequenceGroup) -> None:
    """Makes a model's packed forwards share their tokens over the group.

    A model whose outputs that changes is refused: its tokens mix in other ways than attention.
    """
    core = getattr(model, "backbone", model)
    backbone = core.base_model
    setting = f"ray.sequence_parallel_size = {group.size}"
    name = type(backbone).__name__
    if not core.packable:
        raise TelescopeError(f"{setting} needs packed rows, and {name} runs with padding: use 1")
    rows = PackedRows((7, 4), core.device)
    shard = TokenShard(rows, group)
    vocabulary = backbone.config.get_text_config().vocab_size
    ids = (torch.arange(rows.total) % vocabulary).to(core.device)

    def outputs() -> tuple[Tensor, Tensor]:
        """Hidden states of all tokens: each rank its share, and each rank all of them."""
        part = hidden_states(backbone, ids[shard.tokens][None], shard.positions[None], shard)
        place, token = shard.own(np.arange(rows.total))
        shared = group.complete(part[place], token, rows.total)
        return shared, hidden_states(backbone, ids[None], rows.positions[None], rows)

    with torch.no_grad():
        shared, whole = run_in_forward(model, outputs)
    found = float((shared.float() - whole.float()).norm() / whole.float().norm())
    limit = 0.05 if whole.dtype is torch.bfloat16 else 1e-3
    if not found <= limit:  # also NaN
        raise TelescopeError(
            f"{setting} changes the outputs of {name} by {found:.2g}: its tokens mix in other "
            "ways than attention; use 1"
        )
    core.sequence_group = group
