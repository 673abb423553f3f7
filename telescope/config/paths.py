"""Paths that a recipe names relative to itself, and files that may be read."""

from __future__ import annotations

import copy
import errno
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from telescope.config.code import DEFINITIONS, FUNCTIONS, MODELS, places_of
from telescope.errors import TelescopeError

BUILT_IN_MODELS = ("builtin", "smollm2")
PATHS = (
    *MODELS,
    "data.files",
    "data.eval_files",
    "warm_start.files",
    "reward.model",
    "rollout.corpus",
    "eval.sets.*.files",
)
"""Settings that may name a file or a folder."""


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
    found = copy.deepcopy({**data})
    for settings, resolve in ((PATHS, _path), ((*DEFINITIONS, *FUNCTIONS), _code)):
        for setting in settings:
            for _, table, name in places_of(setting, found):
                table[name] = _each(table[name], folder, resolve)
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
