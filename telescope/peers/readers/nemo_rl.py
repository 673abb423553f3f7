"""NeMo-RL's training data: train_data_stepN.jsonl, one line per response, prompt included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from telescope.peers.readers.base import (
    ALWAYS,
    Kind,
    by_column,
    drop_zeros,
    from_first,
    json_lines,
    numbers,
)

_COLUMNS = {
    "advantages": "advantages",
    "rollout_log_probs": "generation_logprobs",
    "old_log_probs": "prev_logprobs",
}
_NEEDED = ("token_ids", "token_loss_mask", "input_lengths")


def _read(files: list[Path]) -> dict[str, Any]:
    rows = (_only(row) for file in files for row in json_lines(file, _NEEDED))
    # Dynamic sampling writes the scores that it left out as rows without tokens.
    given = by_column([_response(row) for row in rows if row["token_ids"]], (*ALWAYS, "scores"))
    drop_zeros(given, "old_log_probs")  # skipped with force_on_policy_ratio
    return given


def _response(row: dict[str, Any]) -> dict[str, Any]:
    end = int(row["input_lengths"])
    mask = row["token_loss_mask"][:end]
    start = from_first(mask)
    found: dict[str, Any] = {
        "prompts": row["token_ids"][:start],
        "responses": row["token_ids"][start:end],
        "mask": mask[start:],
        "scores": row.get("filtered_rewards", row.get("rewards")),
    }
    for name, field in _COLUMNS.items():
        if field in row:
            found[name] = numbers(row[field][start:end])
    return found


def _only(row: dict[str, Any]) -> dict[str, Any]:
    """The row without the lists of one: the writer goes through the batch in batches of one."""
    return {
        key: value[0] if isinstance(value, list) and len(value) == 1 else value
        for key, value in row.items()
    }


KIND = Kind(
    name="nemo-rl",
    version="7ea279a (2026-08-22)",
    pattern="**/train_data_step*.jsonl",
    step=r"train_data_step(\d+)\.jsonl$",
    read=_read,
    rules=(
        "the estimator is not written, GRPO or PPO: give it with --settings",
        "the log-probs of the update itself are not written: ratio and clipping cannot be shown",
        "groups are not written: advantages are shown as recorded",
    ),
)
