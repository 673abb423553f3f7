"""slime's training data: a .pt file per rollout (`--save-debug-train-data`), format 2.

Read with weights_only: tensors and plain containers, nothing that could run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.peers.readers.base import Kind, complete, need

_COLUMNS = {
    "rollout_log_probs": "rollout_log_probs",
    "old_log_probs": "log_probs",
    "ref_log_prob": "ref_log_probs",
    "values": "values",
    "advantages": "advantages",
    "returns": "returns",
    "kl": "kl",
    "entropy": "entropy",
}


def _read(files: list[Path]) -> dict[str, Any]:
    samples = [sample for file in files for sample in _samples(file)]
    given: dict[str, list[Any]] = {"prompts": [], "responses": [], "mask": []}
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    scores = [sample.get("rewards", sample.get("raw_reward")) for sample in samples]
    for sample in samples:
        tokens = _list(sample["tokens"])
        length = int(sample["response_lengths"])
        start = len(tokens) - length
        given["prompts"].append(tokens[:start])
        given["responses"].append(tokens[start:])
        given["mask"].append(_list(sample.get("loss_masks", [1] * length))[-length:])
        for name, field in _COLUMNS.items():
            column = sample.get(field)
            columns[name].append(None if column is None else _list(column))
    if all(isinstance(score, int | float) for score in scores):
        given["scores"] = scores
    return given | complete(columns)


def _samples(path: Path) -> list[dict[str, Any]]:
    import pickle

    import torch

    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        problem = str(error).splitlines()[0]
        raise TelescopeError(
            f"{path} holds more than tensors and plain values, and is not opened: {problem}"
        ) from None
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != 2:
        raise TelescopeError(f"{path} has format {version}; this reader knows format 2")
    samples: list[dict[str, Any]] = data["samples"]
    for sample in samples:
        need(sample, ("tokens", "response_lengths"), path)
    return samples


def _list(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


KIND = Kind(
    name="slime",
    version="624b824 (2026-08-21), format 2",
    pattern="**/*.pt",
    step=r"(\d+)\.pt$",
    read=_read,
    settings={"estimator": "grpo", "whiten": False, "kl_coef": 0.0},
    rules=("the log-probs of the update itself are not written: the ratio cannot be shown",),
)
