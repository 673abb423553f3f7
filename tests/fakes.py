"""Small stand-ins that behave: batches typed by hand, a backbone that reports positions.

Torch-free ones: tests/tiny.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader

from telescope.batch import Response, RowInfo, TokenBatch
from telescope.models import shards
from tests.tiny import EOS, tiny_config, write_tiny_model

__all__ = [
    "EOS",
    "PositionBackbone",
    "hand_batch",
    "read_shards",
    "tiny_config",
    "write_tiny_model",
]


def read_shards(checkpoint: Path, role: str) -> dict[str, Tensor]:
    """Everything a checkpoint holds of a role, whole and by name: "weight/…", "exp_avg/…",
    "exp_avg_sq/…", "step/…", "updates".
    """
    folder = checkpoint / "shards" / role
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {name: torch.empty(of.size, dtype=of.properties.dtype) for name, of in stored.items()}
    shards.load(folder, state)
    return state


def hand_batch(
    mask: list[list[int]],
    *,
    prompt: int = 3,
    attended: list[list[int]] | None = None,
    seed: int = 0,
    vocab: int = 26,
    **columns: Tensor,
) -> TokenBatch:
    """A batch with this response mask and random ids.

    `attended` differs from the mask where a tool wrote tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    response_mask = torch.tensor(mask)
    rows, width = response_mask.shape
    exists = torch.tensor(attended) if attended is not None else response_mask
    attention = torch.cat([torch.ones(rows, prompt, dtype=torch.long), exists], 1)
    ids = torch.randint(2, vocab, (rows, prompt + width), generator=generator)
    return TokenBatch(
        {
            "prompts": ids[:, :prompt],
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
            "responses": ids[:, prompt:],
            "response_mask": response_mask,
            "sample": torch.arange(rows),
            "group": torch.zeros(rows, dtype=torch.long),
            "truncated": torch.zeros(rows, dtype=torch.bool),
            **columns,
        },
        [
            RowInfo(prompt="p", response=Response("r", row[:n]))
            for row, n in zip(ids[:, prompt:].tolist(), exists.sum(1).tolist(), strict=True)
        ],
    )


class PositionBackbone(nn.Module):
    """A backbone whose hidden state is the absolute position: with a head of 1 the value IS the
    position it was read at.
    """

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=1))

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        positions = torch.arange(input_ids.shape[1], dtype=torch.float32)
        return SimpleNamespace(last_hidden_state=positions.expand(input_ids.shape).unsqueeze(-1))
