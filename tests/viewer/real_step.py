"""A batch taken through the real tensor code, and the ledger table that it gives."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch

from telescope.batch import Scores, TokenBatch
from telescope.config import CreditConfig
from telescope.credit import compute_advantages
from telescope.explain.settings import Settings
from telescope.ledger.schema import PER_ROW, PER_TOKEN
from telescope.viewer.recorded import RecordedStep
from telescope.viewer.typed_run import schema_of
from tests.fakes import hand_batch

BETA = 0.1
MASKS = [
    [1, 1, 1, 1, 1, 1, 1],
    [1, 1, 1, 0, 0, 1, 1],  # a tool wrote two tokens
    [1, 1, 1, 1, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 0],
    [1, 1, 1, 1, 1, 1, 0],
    [1, 0, 0, 1, 1, 1, 1],  # a tool again
    [1, 1, 1, 1, 1, 0, 0],
    [1, 0, 0, 0, 0, 0, 0],
]
EXISTS = [[int(any(row[i:])) for i in range(len(row))] for row in MASKS]


def real_batch(seed: int = 3) -> TokenBatch:
    """Eight responses in two groups of four, before credit: tools, truncation, several rewards."""
    draw = torch.Generator().manual_seed(seed)
    batch = hand_batch(MASKS, attended=EXISTS)
    mask = batch.mask
    rows, width = mask.shape

    def noise(scale: float) -> Any:
        return torch.randn(rows, width, generator=draw) * scale * mask

    part = {name: torch.rand(rows, generator=draw).tolist() for name in ("verdict", "format")}
    scores = [
        Scores(a + 0.5 * b, {"verdict": a, "format": b}, {"verdict": 1.0, "format": 0.5})
        for a, b in zip(part["verdict"], part["format"], strict=True)
    ]
    last = [max(i for i in range(width) if row[i]) for row in MASKS]
    on_tokens = noise(0.1)
    for row, place in enumerate(last):
        on_tokens[row, place] += scores[row].total
    truncated = torch.tensor([row in (2, 6) for row in range(rows)])
    made = batch.with_columns(
        token_level_scores=on_tokens,
        values=noise(0.5),
        old_log_probs=-noise(1.0).abs(),
        ref_log_prob=-noise(1.0).abs(),
        bootstrap=torch.where(truncated, 0.4, 0.0),
        truncated=truncated,
        group=torch.tensor([0, 0, 1, 1, 0, 1, 1, 0]),
        sum_pi_squared=mask * 0.3,
        attention=noise(1.0).abs(),
        greedy_score=torch.tensor([0.5, 0.5, 0.2, 0.2, 0.5, 0.2, 0.2, 0.5]),
    )
    return made.with_info(scores=scores)


def credited(batch: TokenBatch, **settings: Any) -> TokenBatch:
    """The batch as a run with these settings would have trained on it."""
    return compute_advantages(batch, CreditConfig.of(**settings), kl_coef=BETA)


def table_of(batch: TokenBatch, *, rows: int | None = None, **settings: Any) -> pa.Table:
    """The ledger of a credited batch, of all its responses or of the first `rows`."""
    credit = CreditConfig.of(**settings)
    count = len(batch) if rows is None else rows
    made = []
    for row in range(count):
        length = sum(EXISTS[row])
        scores = batch.scores[row]
        columns: dict[str, Any] = {
            name: batch[name][row, :length].tolist() for name in PER_TOKEN if name in batch
        }
        columns |= {name: batch[name][row].item() for name in PER_ROW if name in batch}
        made.append(
            columns
            | {
                "prompt": f"prompt {columns['group']}",
                "response": "",
                "score": scores.total,
                "parts": list(scores.parts.items()),
                "token_bytes": [b"x"] * length,
                "actor_updates": [],
                "critic_updates": [],
            }
        )
    recorded = Settings.of(kl_coef=BETA, **{"whiten": credit.whitens, **settings})
    return pa.Table.from_pylist(made, schema_of("real", 0, recorded))


def step_of(batch: TokenBatch, *, rows: int | None = None, **settings: Any) -> RecordedStep:
    """What was recorded of a run with these settings."""
    table = table_of(credited(batch, **settings), rows=rows, **settings)
    return RecordedStep(table, part_weights={"verdict": 1.0, "format": 0.5})


def flat(batch: TokenBatch, name: str, rows: int | None = None) -> list[float]:
    """A column of the batch, response after response."""
    count = len(batch) if rows is None else rows
    return [x for row in range(count) for x in batch[name][row, : sum(EXISTS[row])].tolist()]
