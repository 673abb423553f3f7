"""The folder of a run: it exists, one process writes into it, and it holds the config.

runs/<name>/  config.toml  metrics.jsonl  ledger/  checkpoints/  report.html
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from telescope.config import Config, changes, load_saved_config, to_toml
from telescope.errors import TelescopeError


def checkpoints_folder(config: Config) -> Path:
    """Returns the folder of the run's checkpoints."""
    return config.run_dir / "checkpoints"


def create_folder(config: Config) -> None:
    """Makes the run's folder, unless it exists."""
    try:
        checkpoints_folder(config).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TelescopeError(
            f"cannot write into {config.run_dir}: {error.strerror}; "
            "set `dir` to a folder you may write to"
        ) from error


@contextmanager
def locked(config: Config) -> Iterator[None]:
    """Keeps other processes from training the same run. The lock ends with the process."""
    with (config.run_dir / ".lock").open("w") as file:
        if not _lock(file):
            raise TelescopeError(
                f"another process is training {config.run_dir}: wait for it, or use another --name"
            )
        yield


def _lock(file: IO[str]) -> bool:
    """Takes the lock. It tries for half a second: the page holds it for a moment to look."""
    for _ in range(10):
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def write_config(config: Config) -> None:
    """Writes config.toml, whole or not at all."""
    recipe = config.run_dir / "config.toml"
    temporary = recipe.with_name(".config.toml.tmp")
    try:
        temporary.write_text(to_toml(config), "utf-8")
        temporary.replace(recipe)
    except OSError as error:
        raise TelescopeError(
            f"cannot write {recipe}: {error.strerror}; set `dir` to a folder you may write to"
        ) from error


def config_changes(config: Config) -> list[str]:
    """Settings that differ from those in the folder's config.toml."""
    recipe = config.run_dir / "config.toml"
    return changes(load_saved_config(recipe), config) if recipe.is_file() else []
