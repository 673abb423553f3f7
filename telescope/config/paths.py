"""Paths that a recipe names relative to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PATHS = {
    "model": ("path", "critic_path", "reference_path"),
    "data": ("files", "eval_files"),
    "warm_start": ("files",),
    "reward": ("model",),
    "rollout": ("corpus",),
}
"""Settings that may name a file or a folder."""
CODE = {
    "reward": ("functions", "attention"),
    "rollout": ("environment",),
    "credit": ("estimator",),
    "actor": ("loss",),
    "critic": ("loss",),
}
"""Settings that may name `file.py:object`."""
BUILT_IN_MODELS = ("builtin", "smollm2")


def beside_recipe(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The recipe's settings, with the paths that exist beside it made absolute.

    Others stay as they are: a name on the hub, or a file in the working folder.
    """
    found = {**data}
    if "callbacks" in data:
        found["callbacks"] = _each(data["callbacks"], folder, _code)
    for settings, resolve in ((PATHS, _path), (CODE, _code)):
        for section, names in settings.items():
            values = found.get(section)
            if isinstance(values, Mapping):
                changed = {
                    name: _each(values[name], folder, resolve) for name in names if name in values
                }
                found[section] = {**values, **changed}
    evaluation = found.get("eval")
    if isinstance(evaluation, Mapping) and isinstance(evaluation.get("sets"), Mapping):
        sets = {name: _set_beside(own, folder) for name, own in evaluation["sets"].items()}
        found["eval"] = {**evaluation, "sets": sets}
    return found


def _set_beside(own: Any, folder: Path) -> Any:
    """The settings of one evaluation set, with its paths made absolute."""
    if not isinstance(own, Mapping):
        return own
    found = {**own}
    for name, resolve in (("files", _path), ("functions", _code)):
        if name in found:
            found[name] = _each(found[name], folder, resolve)
    return found


def _each(value: Any, folder: Path, resolve: Callable[[str, Path], str]) -> Any:
    """`resolve` of a text, or of each text in a list."""
    if isinstance(value, list):
        return [_each(item, folder, resolve) for item in value]
    return resolve(value, folder) if isinstance(value, str) else value


def _path(value: str, folder: Path) -> str:
    if not value or value in BUILT_IN_MODELS or Path(value).expanduser().is_absolute():
        return value
    if any(sign in value for sign in "*?["):
        exists = next(folder.glob(value), None) is not None
    else:
        exists = (folder / value).exists()
    return str(folder.absolute() / value) if exists else value


def _code(value: str, folder: Path) -> str:
    source, _, name = value.rpartition(":")
    return f"{_path(source, folder)}:{name}" if source.endswith(".py") else value
