"""NeMo-RL's training data: train_data_stepN.jsonl, one line per response, prompt included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from telescope.peers.readers.base import Kind, complete, from_first, json_lines, known, numbers

_COLUMNS = {
    "advantages": "advantages",
    "rollout_log_probs": "generation_logprobs",
    "old_log_probs": "prev_logprobs",
}
_NEEDED = ("token_ids", "token_loss_mask", "input_lengths")


def _read(files: list[Path]) -> dict[str, Any]:
    given: dict[str, list[Any]] = {"prompts": [], "responses": [], "mask": [], "scores": []}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for row in (_only(row) for file in files for row in json_lines(file, _NEEDED)):
        if not row["token_ids"]:  # dynamic sampling: one of the scores that were left out
            continue
        end = int(row["input_lengths"])
        mask = row["token_loss_mask"][:end]
        start = from_first(mask)
        given["prompts"].append(row["token_ids"][:start])
        given["responses"].append(row["token_ids"][start:end])
        given["mask"].append(mask[start:])
        given["scores"].append(row.get("filtered_rewards", row.get("rewards")))
        for name, field in _COLUMNS.items():
            columns[name].append(numbers(row[field][start:end]) if field in row else None)
    if not known(columns["old_log_probs"]):  # skipped with force_on_policy_ratio
        del columns["old_log_probs"]
    return given | complete(columns)


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
