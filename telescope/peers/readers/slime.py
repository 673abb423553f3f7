"""slime's debug data: a .pt file per rollout.

Training data (`--save-debug-train-data`, format 2) has every number; a rollout
(`--save-debug-rollout-data`) has log-probs of the sampler and rewards. Where both are below a
folder, as with `--dump-details`, the training data are read.

Read with weights_only: tensors and plain containers, nothing that could run.
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from telescope.errors import TelescopeError
from telescope.peers.readers.base import Kind, by_column, drop_zeros, need

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
_PER_RESPONSE = {"scores": "score", "truncated": "truncated", "group": "group_index"}
_OF_ROLLOUT = {"response_lengths": "response_length", "loss_masks": "loss_mask"}
"""Field of a training sample -> that of a rollout's."""
CLOSE = 1e-4


def _read(files: list[Path]) -> dict[str, Any]:
    given = by_column([_response(sample) for file in files for sample in _samples(file)])
    drop_zeros(given, "kl")  # slime writes zeros where its kl_coef is 0
    return _named(given)


def _response(sample: dict[str, Any]) -> dict[str, Any]:
    tokens = _list(sample["tokens"])
    length = int(sample["response_lengths"])
    start = len(tokens) - length
    mask = sample.get("loss_masks")
    found: dict[str, Any] = {
        "prompts": tokens[:start],
        "responses": tokens[start:],
        "mask": [1] * length if mask is None else _list(mask)[-length:],
    }
    for name, field in _COLUMNS.items():
        if sample.get(field) is not None:
            found[name] = _list(sample[field])
    for name, field in _PER_RESPONSE.items():
        if isinstance(sample.get(field), int | float):
            found[name] = sample[field]
    return found


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """Advantages under their name: slime writes those that its loss uses, whitened or not."""
    if not {"advantages", "returns"} <= given.keys():
        return given
    used, returns = (_flat(given[name]) for name in ("advantages", "returns"))
    raw = returns - (_flat(given["values"]) if "values" in given else 0.0)
    if not np.isfinite(raw).all() or np.allclose(raw, used, rtol=CLOSE, atol=CLOSE):
        return given
    on = _flat(given["mask"]) > 0
    if on.sum() < 2:
        return given
    centred = raw[on] - raw[on].mean()
    spreads = (np.sqrt(centred.var(ddof=ddof) + 1e-8) for ddof in (0, 1))
    if not any(np.allclose(centred / spread, used[on], atol=CLOSE) for spread in spreads):
        return given
    given["whitened"] = given.pop("advantages")
    return given


def _flat(rows: list[list[float]]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.asarray(row, np.float64) for row in rows])


def _samples(path: Path) -> list[dict[str, Any]]:
    """The samples of a file, a rollout's under the names of training data."""
    data = _load(path)
    version = data.get("format_version") if isinstance(data, dict) else None
    if not isinstance(data, dict) or "samples" not in data or version not in (None, 2):
        raise TelescopeError(f"{path} has format {version}; this reader knows format 2")
    samples: list[dict[str, Any]] = [dict(sample) for sample in data["samples"]]
    raw = data.get("raw_reward")
    for row, sample in enumerate(samples):
        if version is None:
            sample |= {ours: sample.get(theirs) for ours, theirs in _OF_ROLLOUT.items()}
            sample["score"] = sample.get("reward")
            sample["truncated"] = int(sample.get("status") == "truncated")
        else:
            place = sample.get("rollout_position", row)
            sample["score"] = sample.get("rewards")
            if isinstance(raw, list) and len(raw) == len(samples):
                sample["score"] = raw[place]  # before slime normalises them
        need(sample, ("tokens", "response_lengths"), path)
    return samples


def _load(path: Path) -> Any:
    import torch

    try:
        _check_size(path)
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # such a file fails in many ways
        problem = (str(error) or "it is empty").splitlines()[0]
        raise TelescopeError(
            f"{path} holds more than tensors and plain values, or is not whole, and is not "
            f"opened: {problem}"
        ) from None


def _check_size(path: Path) -> None:
    """Refuses an archive that is larger inside than outside: torch writes none."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = sum(entry.file_size for entry in archive.infolist())
        if inside > path.stat().st_size:
            raise ValueError(f"{inside} bytes are packed into a file of {path.stat().st_size}")


def _chosen(files: list[Path]) -> dict[Path, int]:
    """File -> its rollout: training data, else rollouts; all files if there is neither."""
    training: dict[Path, int] = {}
    rollouts: dict[Path, int] = {}
    broken: dict[Path, int] = {}
    for file in files:
        try:
            data = _load(file)
        except TelescopeError:
            broken[file] = 0  # reading it says what is wrong
            continue
        if isinstance(data, dict) and isinstance(data.get("samples"), list):
            found = training if "format_version" in data else rollouts
            if not file.name.startswith("eval_"):
                found[file] = int(data.get("rollout_id", 0))
    return training or rollouts or broken


def _list(values: Any) -> list[Any]:
    """The numbers of a tensor or a list. A tensor may name more of them than the file holds."""
    if hasattr(values, "untyped_storage") and values.nbytes > values.untyped_storage().nbytes():
        raise ValueError(f"a tensor has {values.numel()} numbers, and the file holds fewer")
    return values.tolist() if hasattr(values, "tolist") else list(values)


KIND = Kind(
    name="slime",
    version="624b824 (2026-08-21), format 2",
    pattern="**/*.pt",
    step=r"(\d+)[^/]*\.pt$",
    read=_read,
    chosen=_chosen,
    rules=(
        "the estimator is not written: give it with --settings",
        "the log-probs of the update itself are not written: the ratio cannot be shown",
    ),
)
