"""Disks that are full or fail: one line says so, and `--resume` goes on once there is room."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from torture.table import Row
from torture.workshop import Workshop

_WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir"}


def torture(shop: Workshop, count: int) -> Row:
    row = Row("disks: full, failing")
    while shop.goes_on(row, count):
        kind = ("full", "too large", "failing")[row.faults % 3]
        run = shop.new_run("disk")
        with _mounted(run.parent, shop) if kind == "full" else contextlib.nullcontext(""):
            ended = shop.train(run, before=_fault(kind, run, shop.chance))
            row.faults += 1
            row.look(ended, f"a {kind} disk")
            if kind == "full":
                _remount(run.parent, "100m")
            shop.resume(run, row, f"after a {kind} disk ({ended.said[-300:]})")
    return row


def _fault(kind: str, run: Path, chance: Random) -> Callable[[], None]:
    """What is done in the process of the run before it starts."""
    if kind == "too large":
        return partial(_limit, chance.randint(500, 40_000))
    if kind == "failing":
        return partial(_fail, run, chance.randint(1, 60), chance.random() < 0.5)
    return lambda: None


@contextmanager
def _mounted(home: Path, shop: Workshop) -> Iterator[None]:
    """A small disk in memory under the run's folder. Where none may be mounted, there is none."""
    recipe = (home / "recipe.toml").read_bytes()
    size = f"{shop.chance.randint(8, 180)}k"
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(home)]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    (home / "recipe.toml").write_bytes(recipe)
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(home)], check=True)


def _remount(home: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(home)], capture_output=True)


def _limit(size: int) -> None:
    """No file may be larger: writes fail half-way."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _fail(run: Path, number: int, for_good: bool) -> None:
    """The `number`th change of the run's folder fails, and maybe every later one."""
    seen = 0
    fsync = os.fsync

    def change() -> None:
        nonlocal seen
        seen += 1
        if seen == number or (for_good and seen > number):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(run))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_change = event in _WRITES or (event == "open" and _writes(arguments))
        if is_change and str(run) in str(arguments[0]):
            change()

    def failing_fsync(descriptor: int) -> None:
        change()
        fsync(descriptor)

    os.fsync = failing_fsync
    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
