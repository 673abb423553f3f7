"""The folder of a run: it exists, one process writes into it, and it holds the config.

runs/<name>/  config.toml  metrics.jsonl  ledger/  checkpoints/  report.html
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

from telescope.config import Config, changes, load_saved_config, to_saved_toml
from telescope.errors import TelescopeError
from telescope.ledger import reader as ledger
from telescope.run.manifest import sync, write_whole

LOCK = ".lock"
"""File of a run's folder that the process which trains it has locked."""


def checkpoints_folder(config: Config) -> Path:
    return config.run_dir / "checkpoints"


def create_folder(config: Config) -> list[Path]:
    """Makes the run's folder, unless it exists. Returns the folders that are new, inner first."""
    wanted = checkpoints_folder(config)
    try:
        new = [folder for folder in (wanted, *wanted.parents) if not folder.exists()]
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TelescopeError(
            f"cannot write into {config.run_dir}: {error.strerror}; "
            "set `dir` to a folder you may write to"
        ) from error
    return new


def remove_unused(folders: Sequence[Path]) -> None:
    """Removes the folders that a refused start has made, as far as they are empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


class RunLock:
    """Keeps other processes from training the same run. It ends with the process at the latest.

    In one process, as in a notebook, a new lock takes over from an older one that is not `busy`.
    """

    _held: ClassVar[WeakValueDictionary[Path, RunLock]] = WeakValueDictionary()
    """Those of this process, by file."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run.absolute() / LOCK
        self.busy = False
        self._file: int | None = None

    @property
    def is_held(self) -> bool:
        return self._file is not None

    def take(self, *, busy: bool = False) -> None:
        """Takes the lock, unless this object holds it. The file's content is left alone."""
        if self._file is None:
            self._take()
        self.busy = busy

    def _take(self) -> None:
        other = self._held.get(self.path)
        if other is not None and not other.busy:
            other.release()
        while self._file is None:
            file = self._open()
            try:
                if not self._try(file):
                    raise TelescopeError(
                        f"another process is training {self.run}: "
                        "wait for it, or use another --name"
                    )
                if self._is_there(file):
                    self._file = file
            finally:
                if self._file is None:
                    os.close(file)
        self._held[self.path] = self

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return os.open(self.path, flags, 0o644)
        except OSError as error:
            raise self._unusable(error) from error

    def _is_there(self, file: int) -> bool:
        """Whether the locked file is still the one of this name.

        A start that was refused removes the lock of its new folder. Who waited for it has a lock
        that nobody else would see.
        """
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.path))
        except OSError:
            return False

    def release(self) -> None:
        """Gives the lock back, if it is held."""
        self.busy = False
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a reward may have closed it
                os.close(file)

    def __del__(self) -> None:
        self.release()

    def _try(self, file: int) -> bool:
        """Tries for half a second: the page holds the lock for a moment to look."""
        for _ in range(10):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            except OSError as error:
                raise self._unusable(error) from error
            else:
                return True
        return False

    def _unusable(self, error: OSError) -> TelescopeError:
        return TelescopeError(
            f"cannot lock {self.run / LOCK}: {error.strerror}; it must be an ordinary file: "
            "remove it, or use another --name"
        )


def write_config(config: Config) -> None:
    """Writes config.toml, whole or not at all, and waits until it is on disk."""
    recipe = config.run_dir / "config.toml"
    try:
        write_whole(recipe, to_saved_toml(config).encode())
        sync(config.run_dir)
        sync(config.run_dir.parent)
    except OSError as error:
        raise TelescopeError(
            f"cannot write {recipe}: {error.strerror}; set `dir` to a folder you may write to"
        ) from error


def sync_records(run: Path, *, after_step: int) -> None:
    """Waits until metrics and ledger are on disk: those of steps after `after_step`.

    A checkpoint is renamed after that, so what it continues is there after a power cut.
    """
    paths = [*_recorded(run, after_step), run / "metrics.jsonl", run / "ledger", run]
    with ThreadPoolExecutor() as threads:
        list(threads.map(sync, (path for path in paths if path.exists())))


def discard_ledger(run: Path, *, after_step: int) -> None:
    """Moves the ledger files after a step to ledger/discarded: the run will write its own."""
    outdated = _recorded(run, after_step)
    if not outdated:
        return
    folder = run / "ledger" / "discarded"
    try:
        folder.mkdir(exist_ok=True)
        for path in outdated:
            path.replace(folder / path.name)
    except OSError as error:
        raise TelescopeError(f"cannot move old files to {folder}: {error.strerror}") from error


def _recorded(run: Path, after_step: int) -> list[Path]:
    """The ledger files of steps after `after_step`, of training and of evaluation."""
    return [ledger.path_of(run, *file) for file in ledger.files(run) if file[0] > after_step]


def config_changes(config: Config) -> list[str]:
    """Settings that differ from those in the folder's config.toml."""
    recipe = config.run_dir / "config.toml"
    if not recipe.is_file():
        return []
    try:
        return changes(load_saved_config(recipe), config)
    except TelescopeError as unreadable:  # the recipe that was given now is complete without it
        return [f"unknown, because {unreadable}"]
