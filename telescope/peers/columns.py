"""The columns of a watched step, as a ledger file has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from telescope.ledger.schema import ACTOR_UPDATE, PER_TOKEN
from telescope.ledger.table import TokenBytes, list_column
from telescope.peers.rows import Array, WatchedStep
from telescope.peers.rules import Moments


def columns_of(watched: WatchedStep, moments: Moments, tokens: TokenBytes | None) -> dict[str, Any]:
    """The columns; `tokens` are the tokenizer's. Without one a token reads as its id."""
    count = len(watched)
    lengths = np.array([len(row) for row in watched.responses])
    columns: dict[str, Any] = {
        "sample": list(range(count)),
        "prompt": watched.prompts or _decoded(watched.prompt_ids, count, tokens),
        "prompt_index": watched.group or list(range(count)),
        "response": watched.texts or _decoded(watched.responses, count, tokens),
        "score": watched.scores or [None] * count,
        "parts": [list(part.items()) for part in watched.parts or [{}] * count],
        "token_bytes": _token_bytes(watched, tokens),
        "responses": _lists(watched.responses, lengths, "responses"),
        "response_mask": _lists(watched.mask, lengths, "response_mask"),
        "actor_updates": _update(watched, lengths),
    }
    if watched.prompt_ids is not None:
        columns["prompt_ids"] = [row.tolist() for row in watched.prompt_ids]
    per_row = {
        "group": watched.group,
        "truncated": watched.truncated,
        "bootstrap": watched.bootstrap,
        "scale": watched.scale,
    }
    columns |= {name: values for name, values in per_row.items() if values is not None}
    if moments is not None:
        columns["whiten_mean"] = [moments[0]] * count
        columns["whiten_std"] = [moments[1]] * count
    for name, rows in watched.columns.items():
        columns[name] = _lists(_silent(rows, watched.mask), lengths, name)
    return columns


def _decoded(rows: Sequence[Array] | None, count: int, tokens: TokenBytes | None) -> list[str]:
    if rows is None:
        return [""] * count
    if tokens is None:
        return [" ".join(map(str, row.tolist())) for row in rows]
    return [str(tokens.tokenizer.decode(row.tolist())) for row in rows]


def _token_bytes(watched: WatchedStep, tokens: TokenBytes | None) -> list[list[bytes]]:
    if watched.pieces is not None:
        return [[piece.encode() for piece in row] for row in watched.pieces]
    if tokens is None:
        return [[f"[{i}]".encode() for i in row.tolist()] for row in watched.responses]
    return [[tokens[i] for i in row.tolist()] for row in watched.responses]


def _silent(rows: Sequence[Array], mask: Sequence[Array]) -> list[Array]:
    """The columns with 0 where the policy did not write: trainers leave anything there."""
    return [np.where(m > 0, row, 0.0) for row, m in zip(rows, mask, strict=True)]


def _lists(rows: Sequence[Array], lengths: Array, name: str) -> pa.ListArray:
    flat = np.concatenate(rows) if len(rows) else np.zeros(0)
    return list_column(flat, lengths, PER_TOKEN[name])


def _update(watched: WatchedStep, lengths: Array) -> pa.ListArray:
    """The last update of the policy, where its log-probs are known; else none."""
    kinds = {name: ACTOR_UPDATE[name] for name in ("old_log_probs", "log_probs")}
    fields = [("epoch", pa.int16()), ("minibatch", pa.int16()), *kinds.items()]
    updates: list[list[dict[str, Any]]] = [[] for _ in lengths]
    old = watched.columns.get("old_log_probs")
    if watched.log_probs is not None and old is not None:
        pairs = zip(
            _silent(old, watched.mask), _silent(watched.log_probs, watched.mask), strict=True
        )
        updates = [
            [{"epoch": -1, "minibatch": -1, "old_log_probs": a.tolist(), "log_probs": b.tolist()}]
            for a, b in pairs
        ]
    return pa.array(updates, pa.list_(pa.struct(fields)))
