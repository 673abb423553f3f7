"""Power cuts at random moments of a run, then `--resume` on what the disk has kept."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from random import Random

from telescope.config import CheckpointConfig
from telescope.errors import TelescopeError
from torture.disk import Disk
from torture.processes import Command
from torture.table import Row
from torture.workshop import Workshop

EVENTS = 200
"""Roughly what a run has; a later cut happens at its end."""


def torture(shop: Workshop, count: int) -> Row:
    row = Row("power cuts")
    accuracy = _evaluations(shop) if count >= 10 else {}
    while shop.goes_on(row, count):
        run = shop.new_run("power")
        moments: list[int] = []
        for _ in range(min(shop.chance.randint(1, 3), count - row.faults)):
            moment = shop.chance.randint(1, EVENTS)
            moments.append(moment)
            _cut(shop, run, moment, row)
            if accuracy:
                _evaluate(shop, run, row, accuracy, f"eval after a cut at event {moments}")
        shop.resume(run, row, f"cuts at events {moments}", tidy=remove_older)
    return row


def remove_older(run: Path) -> None:
    """Removes checkpoints that a run does not keep. One that is damaged stays: a difference.

    The power may go off before the removal of one is on disk. In a run that has ended, nothing
    removes it again.
    """
    from telescope.run import checkpoint

    for old in checkpoint.list_checkpoints(run / "checkpoints")[: -CheckpointConfig().keep]:
        with contextlib.suppress(TelescopeError):
            checkpoint.check(old)
            shutil.rmtree(old)


def _cut(shop: Workshop, run: Path, moment: int, row: Row) -> None:
    """Trains until the power is cut. Leaves the folder as the disk has kept it."""
    home = run.parent
    side = shop.folder / "side"
    shutil.rmtree(side, ignore_errors=True)
    chance = Random(shop.chance.random())

    def train() -> None:
        from telescope.commands import main

        disk = Disk(home, side, moment, chance)
        disk.watch()
        try:
            main(["train", str(home / "recipe.toml"), "--resume"])
        finally:
            disk.cut()  # at the end of the run at the latest

    command = Command(["--version"], shop.folder / "said.txt", before=train)
    ended = command.wait()
    row.look(ended, f"a cut at event {moment}")
    if not (side / "after").exists():
        raise RuntimeError(f"no cut at event {moment}: exit code {ended.code}: {ended.said[-500:]}")
    row.faults += 1
    shutil.rmtree(home)
    (side / "after").rename(home)


def _evaluations(shop: Workshop) -> dict[str, str]:
    """Checkpoint -> what `eval` prints of it in an undisturbed run."""
    run = shop.new_run("kept", **{"checkpoint.keep": "9"})
    shop.train(run)
    found = {}
    for checkpoint in sorted((run / "checkpoints").iterdir(), reverse=True):
        found[checkpoint.name] = shop.command(run, "eval", str(run)).said
        shutil.rmtree(checkpoint)
    return found


def _evaluate(shop: Workshop, run: Path, row: Row, known: dict[str, str], what: str) -> None:
    """`eval` refuses what is left, or prints the numbers of one of the checkpoints."""
    ended = shop.command(run, "eval", str(run))
    row.look(ended, what)
    if ended.code == 0 and ended.said not in known.values():
        row.silent.append(f"{what}: {ended.said[:300]}")
