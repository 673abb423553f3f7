"""prime-rl's token exports: token_exports/step_N/rank_R.jsonl (`enable_token_export`).

One line per packed sequence, prompt included. The log-prob at index i is that of token i.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from telescope.peers.readers.base import Kind, by_column, from_first, json_lines, numbers

_COLUMNS = {
    "advantages": "advantages",
    "rollout_log_probs": "inference_logprobs",
    "old_log_probs": "inference_logprobs",
    "log_probs": "trainer_logprobs",
    "entropy": "entropy",
}
"""Our column -> the field of the export. The ratio is trainer over inference."""
_NEEDED = ("token_ids", "loss_mask")
_OF_SAMPLER = ("rollout_log_probs", "old_log_probs")


def _was_sampled(row: dict[str, Any]) -> bool:
    """Whether the policy wrote the sequence: other tokens have no log-probs of a sampler."""
    ratio = row.get("importance_ratio")
    return ratio is None or any(number is not None for number in ratio)


def _read(files: list[Path]) -> dict[str, Any]:
    return by_column([_response(row) for file in files for row in json_lines(file, _NEEDED)])


def _response(row: dict[str, Any]) -> dict[str, Any]:
    start = from_first(row["loss_mask"])
    found: dict[str, Any] = {
        "prompts": row["token_ids"][:start],
        "responses": row["token_ids"][start:],
        "mask": row["loss_mask"][start:],
    }
    for name, field in _COLUMNS.items():
        if row.get(field) is not None and (name not in _OF_SAMPLER or _was_sampled(row)):
            found[name] = numbers(row[field][start:])
    return found


KIND = Kind(
    name="prime-rl",
    version="559b447 (2026-08-21), schema 1",
    pattern="**/token_exports/step_*/rank_*.jsonl",
    step=r"step_(\d+)/rank_\d+\.jsonl$",
    read=_read,
    rules=(
        "the estimator is not exported: give it with --settings",
        "the ratio is trainer over inference log-probs: there is no separate old policy",
        "a token is dropped where its probability moved too far (DPPO), not clipped",
        "scores and groups are not exported: advantages are shown as recorded",
    ),
)
