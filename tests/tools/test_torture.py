"""A short version of the torture suite (`make torture`), and that it finds what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from telescope.run.manifest import write_manifest
from torture.disk import Disk
from torture.power import remove_older
from torture.processes import Ended
from torture.table import Row, markdown

ROOT = Path(__file__).parents[2]


def test_a_run_survives_one_fault_of_each_kind():
    asked = ["--signals", "1", "--power", "1", "--damage", "2"]
    command = [sys.executable, "-m", "torture", *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| power cuts | 1 | 1 | 0 | 0 | 0 | 0 |" in done.stdout


def test_whatever_goes_wrong_is_counted():
    row = Row("signals", faults=3)
    row.look(Ended(0, "trained"), "well")
    row.look(Ended(2, "telescope: no room"), "one line")
    row.look(Ended(1, "Traceback (most recent call last):\n"), "badly")
    row.look(Ended(-11, ""), "a crash")
    row.compare([], "same")
    row.compare(["weights"], "other")
    assert markdown([row]).splitlines()[2] == "| signals | 3 | 2 | 1 | 1 | 2 | 0 |"
    assert not row.is_clean


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    root = tmp_path / "root"
    root.mkdir()
    (root / "old").write_text("old")
    return Disk(root, tmp_path / "side", 0, Random(0))


def left(disk: Disk, number: int) -> dict[str, str]:
    """What a power cut leaves."""
    disk.after = disk.root.with_name(f"after-{number}")
    disk._build(disk.root.stat().st_ino, disk.after)
    return {path.name: path.read_text() for path in disk.after.iterdir()}


def test_without_fsync_a_power_cut_may_leave_an_empty_file_or_none(disk: Disk):
    disk._scan()
    for inode in disk.listings:
        disk.listings[inode] = disk.listings[inode][-1:]
    for pin in disk.pins.iterdir():
        disk.synced[int(pin.name)] = pin.read_bytes()
    (disk.root / "new").write_text("new")
    disk._scan()
    cuts = [left(disk, number) for number in range(40)]
    assert all(found["old"] == "old" for found in cuts)
    assert {"new" in found for found in cuts} == {True, False}
    assert {"", "new"} <= {found["new"] for found in cuts if "new" in found}

    disk.synced[(disk.root / "new").stat().st_ino] = b"new"  # an fsync of the file
    place = disk.root.stat().st_ino
    disk.listings[place] = disk.listings[place][-1:]  # and of its folder
    assert all(left(disk, 40 + number)["new"] == "new" for number in range(20))


def test_a_file_does_not_get_the_number_of_a_folder_that_was_removed(disk: Disk):
    """Else the disk would take the file for that folder."""
    for number in range(20):
        (disk.root / "folder").mkdir()
        disk._scan()
        (disk.root / "folder").rmdir()
        (disk.root / f"file-{number}").write_text("new")
        disk._scan()
    place = disk.root.stat().st_ino
    disk.listings[place] = disk.listings[place][-1:]
    assert len(left(disk, 0)) == 21


def test_what_a_cut_leaves_is_built_without_another_cut(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
):
    disk._scan()
    disk.cut_at = disk.events + 1
    monkeypatch.setattr("torture.disk.os.kill", lambda *_: None)
    mkdir = Path.mkdir

    def watched(path: Path) -> None:
        disk._hook("os.mkdir", (path,))
        mkdir(path)

    monkeypatch.setattr(Path, "mkdir", watched)
    disk.cut()
    assert [path.name for path in disk.after.iterdir()] == ["old"]


def test_only_whole_checkpoints_are_taken_for_ones_whose_removal_was_lost(tmp_path: Path):
    folder = tmp_path / "checkpoints"
    named = {"actor": "", "critic": "", "model_path": "", "reward": [], "trained": {}}
    for step in (1, 2, 3, 4):
        (folder / f"step_{step:06d}").mkdir(parents=True)
        write_manifest(folder / f"step_{step:06d}", step, {**named, "reward_in_python": False})
    (folder / "step_000002" / "checkpoint.json").write_text("{")
    remove_older(tmp_path)
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["step_000002", "step_000003", "step_000004"]
