"""Paths that a recipe names relative to itself, and files that may be read."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

BUILT_IN_MODELS = ("builtin", "smollm2")


def check_ordinary(path: Path) -> None:
    """Refuses a pipe, a socket or a device: reading one may never end.

    A run folder may come from anybody, so each of its files is looked at first.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # of a folder the reader says so
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))


def check_no_link(path: Path) -> None:
    """Refuses a link in a run folder, which may come from anybody: writing there ends elsewhere."""
    if path.is_symlink():
        raise TelescopeError(f"{path} is a link, and nothing is written through it: remove it")


def beside_recipe(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The recipe's settings, with the paths that exist beside it made absolute.

    Others stay as they are: a name on the hub, or a file in the working folder.
    """
    return _resolved(data, _SETTINGS, folder)


def _resolved(values: Mapping[str, Any], settings: Settings, folder: Path) -> dict[str, Any]:
    """The values, with paths and names of code resolved where `settings` says so."""
    found = {**values}
    for name, kind in settings.items():
        value = values.get(name)
        if not isinstance(kind, Mapping):
            if name in values:
                found[name] = _each(value, folder, kind)
        elif isinstance(value, Mapping):
            known = dict.fromkeys(value, kind["*"]) if "*" in kind else kind
            found[name] = _resolved(value, known, folder)
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


Settings = Mapping[str, Any]
_SETTINGS: Settings = {
    "callbacks": _code,
    "model": dict.fromkeys(("path", "critic_path", "reference_path", "tokenizer_path"), _path),
    "data": {"files": _path, "eval_files": _path},
    "warm_start": {"files": _path},
    "reward": {"functions": _code, "attention": _code, "model": _path},
    "rollout": {"environment": _code, "corpus": _path},
    "credit": {"estimator": _code},
    "actor": {"loss": _code},
    "critic": {"loss": _code},
    "eval": {"sets": {"*": {"files": _path, "functions": _code}}},
}
"""Settings that may name a file or a folder, or `file.py:object`; "*" is any name."""
