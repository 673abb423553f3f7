"""The folder of a run: its lock, its checkpoints, and what is on disk when a checkpoint appears."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.run import checkpoint, lifecycle
from telescope.run.folder import RunLock, config_changes, create_folder, write_config
from telescope.run.manifest import list_checkpoints
from telescope.trainer import Trainer
from tests.refusals import Job, length, refusal


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config.builtin(name="run", dir=str(tmp_path))
    create_folder(config)
    return config


def add_checkpoint(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"step_{step:06d}").mkdir(parents=True)
        (folder / f"step_{step:06d}" / "checkpoint.json").write_text("{}")


# ---- the lock ----


def test_a_page_that_looks_at_the_lock_does_not_stop_a_start(config: Config) -> None:
    looking = threading.Event()

    def look() -> None:
        with (config.run_dir / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            looking.set()
            time.sleep(0.15)

    page = threading.Thread(target=look)
    page.start()
    looking.wait()
    lock = RunLock(config.run_dir)
    lock.take()
    page.join()
    lock.release()


def test_a_start_beside_a_running_process_changes_nothing(job: Job):
    running = job()
    create_folder(running)
    write_config(running)
    lock = RunLock(running.run_dir)
    lock.take(busy=True)
    before = (running.run_dir / "config.toml").read_bytes()
    for resume in (True, False):
        message = refusal(job(("actor.lr", "0.5")), resume=resume)
        assert f"another process is training {running.run_dir}" in message
    assert (running.run_dir / "config.toml").read_bytes() == before
    lock.release()


def test_in_one_process_a_new_trainer_takes_over_from_an_idle_one(job: Job):
    """As when a notebook's cell is run twice."""
    first = Trainer(job(("steps", "1")), reward=length)
    second = Trainer(job(("steps", "1")), reward=length)
    second.fit()
    with pytest.raises(TelescopeError, match="has been trained to step_000001 meanwhile"):
        first.fit()


def test_a_slow_start_does_not_overwrite_a_run_that_ended_meanwhile(
    job: Job, monkeypatch: pytest.MonkeyPatch
):
    """The other process ends between this one's first look and its lock."""
    take = RunLock.take

    def late(self: RunLock, busy: bool = False) -> None:
        add_checkpoint(self.path.parent / "checkpoints", 2)
        take(self)

    monkeypatch.setattr(RunLock, "take", late)
    config = job()
    assert "already holds a run (step_000002)" in refusal(config)
    assert not (config.run_dir / "config.toml").exists()
    monkeypatch.undo()
    RunLock(config.run_dir).take()  # a start that was refused holds nothing


def test_the_lock_file_is_neither_truncated_nor_followed(config: Config, tmp_path: Path):
    path = config.run_dir / ".lock"
    path.write_text("a note")
    lock = RunLock(config.run_dir)
    lock.take()
    assert path.read_text() == "a note"
    lock.release()

    path.unlink()
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    path.symlink_to(target)
    with pytest.raises(TelescopeError, match="must be an ordinary file"):
        RunLock(config.run_dir).take()
    assert target.read_text() == "precious"


def test_a_lock_whose_file_somebody_closed_is_released(config: Config):
    lock = RunLock(config.run_dir)
    lock.take()
    assert lock._file is not None
    os.close(lock._file)
    lock.release()


def test_a_folder_in_the_place_of_the_lock_is_named(config: Config):
    (config.run_dir / ".lock").mkdir()
    with pytest.raises(TelescopeError, match=r"cannot lock .*\.lock: Is a directory"):
        RunLock(config.run_dir).take()


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(config: Config, tmp_path: Path):
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    (config.run_dir / ".config.toml.tmp").symlink_to(target)
    write_config(config)
    assert target.read_text() == "precious"


# ---- a start that is refused ----


def test_a_refused_start_leaves_no_folder(job: Job, tmp_path: Path):
    config = job(("dir", str(tmp_path / "new" / "runs")), ("data.files", "nosuch.jsonl"))
    assert "nosuch.jsonl" in refusal(config)
    assert not (tmp_path / "new").exists()


def test_a_refused_start_keeps_what_was_there_before(job: Job):
    config = job(("data.files", "nosuch.jsonl"))
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "notes.txt").write_text("mine")
    assert "nosuch.jsonl" in refusal(config)
    assert (config.run_dir / "notes.txt").read_text() == "mine"


# ---- checkpoints ----


@pytest.mark.parametrize("resume", [True, False])
def test_a_checkpoints_folder_that_cannot_be_read_is_no_empty_one(
    resume: bool, job: Job, monkeypatch: pytest.MonkeyPatch
):
    """Root may read everything, so the refusal is simulated."""
    config = job()
    create_folder(config)

    def denied(self: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    message = refusal(config, resume=resume)
    assert f"cannot read {config.run_dir / 'checkpoints'}: Permission denied" in message


def test_a_file_in_the_place_of_the_checkpoints_is_no_empty_folder(tmp_path: Path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(TelescopeError, match="Not a directory"):
        list_checkpoints(tmp_path / "checkpoints")
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_a_refused_start_leaves_the_folder_that_another_has_just_begun(
    job: Job, monkeypatch: pytest.MonkeyPatch
):
    """Two starts at the same moment: both find the folder new."""
    config = job()
    new = create_folder(config)
    monkeypatch.setattr(lifecycle, "create_folder", lambda config: new)
    with (config.run_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process is training" in refusal(config)
    assert (config.run_dir / ".lock").exists()
    assert (config.run_dir / "checkpoints").is_dir()


def test_a_lock_that_was_removed_while_it_was_waited_for_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / ".lock"
    flock = fcntl.flock
    removed = []

    def waits(file: int, how: int) -> None:
        flock(file, how)
        if not removed:
            removed.append(path.unlink())

    monkeypatch.setattr(fcntl, "flock", waits)
    lock = RunLock(tmp_path)
    lock.take()
    monkeypatch.undo()
    with path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    lock.release()


def test_a_checkpoint_is_chosen_by_name_or_number(tmp_path: Path):
    add_checkpoint(tmp_path, 20, 40, 60)
    for name in ("step_000040", "40"):
        assert [path.name for path in checkpoint.chosen(tmp_path, name)] == [
            "step_000020",
            "step_000040",
        ]
    with pytest.raises(TelescopeError, match="has step_000020, step_000040, step_000060"):
        checkpoint.chosen(tmp_path, "step_000041")


def test_checkpoints_after_a_step_are_set_aside(tmp_path: Path):
    add_checkpoint(tmp_path, 20, 40, 60)
    assert checkpoint.set_aside(tmp_path, after_step=40) == ["discarded_step_000060"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_000020", "step_000040"]
    assert (tmp_path / "discarded_step_000060").is_dir()


@pytest.mark.parametrize(
    ("saved", "step", "told"),
    [
        ([], 3, "no checkpoint was written"),
        ([20, 40], 43, "step_000040 is the last good checkpoint: continue from it with --resume"),
        ([20, 40], 40, "step_000040 has the weights that led here: go back with --resume-from"),
        ([40], 40, "no older one is left"),
    ],
)
def test_the_way_back_names_the_last_good_checkpoint(
    saved: list[int], step: int, told: str, tmp_path: Path
):
    add_checkpoint(tmp_path, *saved)
    assert told in checkpoint.way_back(tmp_path, step)


# ---- what is on disk ----


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Path -> its size when it was last synced."""
    found: dict[str, int] = {}
    fsync = os.fsync

    def noted(file: int) -> None:
        fsync(file)
        found[os.readlink(f"/proc/self/fd/{file}")] = os.fstat(file).st_size

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_everything_of_the_steps_is_on_disk_before_their_checkpoint_appears(
    job: Job, synced: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    config = job(("checkpoint.every", "2"), ("ledger.prompts", "1"))
    rename = Path.rename
    renamed: list[Path] = []

    def checked(self: Path, target: Path) -> Path:
        if target.name == "step_000002":
            renamed.append(target)
            run = config.run_dir
            files = [run / "config.toml", run / "metrics.jsonl", *(run / "ledger").glob("*")]
            files += [path for path in self.rglob("*") if path.is_file()]
            assert len(files) == 10
            for path in files:
                name = str(path).replace("config.toml", ".config.toml.tmp")
                assert synced[name] == path.stat().st_size, path
            folders = [run.parent, run, run / "ledger", self, self / "shards" / "actor"]
            assert {str(folder) for folder in folders} <= synced.keys()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", checked)
    Trainer(config, reward=length).fit()
    assert renamed
    assert str(config.run_dir / "checkpoints") in synced


def test_a_resume_beside_an_empty_config_says_that_changes_are_unknown(config: Config):
    (config.run_dir / "config.toml").write_text("")
    (said,) = config_changes(config)
    assert said.startswith("unknown, because")


def test_a_setting_changed_by_a_resume_is_listed(
    config: Config, make_config: Callable[..., Config]
):
    write_config(config)
    changed = config.model_copy(update={"seed": 5})
    assert config_changes(changed) == ["seed: 0 → 5"]
