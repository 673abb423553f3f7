"""A damaged or foreign checkpoint is named, and nothing that was saved before is lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.roles.critic import Critic
from telescope.run import checkpoint
from telescope.run.manifest import describe_file
from telescope.trainer import Trainer
from tests.commands import calls
from tests.fakes import write_tiny_model
from tests.refusals import Job, edit_json, length, names_of_checkpoints, refusal


@pytest.fixture
def two_checkpoints(job: Job) -> Config:
    config = job()
    Trainer(config, reward=length).fit()
    assert names_of_checkpoints(config) == ["step_000001", "step_000002"]
    return config


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def wipe(path: Path) -> None:
    """Replace every byte by zero."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [cut, Path.unlink, wipe], ids=["cut", "gone", "zeros"])
@pytest.mark.parametrize(
    "file",
    [
        "state.pt",
        "shards/actor/__0_0.distcp",
        "shards/critic/__0_0.distcp",
        "shards/actor/.metadata",
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_still_works(
    damage: Callable[[Path], None], file: str, two_checkpoints: Config, tmp_path: Path
):
    newest = two_checkpoints.run_dir / "checkpoints" / "step_000002"
    damage(newest / file)
    message = refusal(two_checkpoints, resume=True)
    assert str(newest) in message
    assert file in message
    assert "move step_000002 away to continue from step_000001" in message

    newest.rename(tmp_path / "damaged")
    trainer = Trainer(two_checkpoints, reward=length, resume=True)
    assert trainer.step == 1
    trainer.fit()
    assert names_of_checkpoints(two_checkpoints) == ["step_000001", "step_000002"]


@pytest.mark.parametrize("missing", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_written_where_the_controller_cannot_see_it_is_refused(
    missing: str, job: Job, monkeypatch: pytest.MonkeyPatch
):
    """As by a worker on a node that has a disk of its own under the same name."""
    save = Critic.save

    def elsewhere(self: Critic, folder: Path) -> None:
        save(self, folder)
        (folder / missing).unlink()

    monkeypatch.setattr(Critic, "save", elsewhere)
    message = refusal(job())
    assert (
        "the critic's workers wrote elsewhere: `dir` must be on a disk that every node shares"
        in message
    )
    assert names_of_checkpoints(job()) == []


def test_a_checkpoint_that_a_worker_cannot_see_is_not_called_damaged(
    two_checkpoints: Config, monkeypatch: pytest.MonkeyPatch
):
    load = Critic.load
    monkeypatch.setattr(Critic, "load", lambda self, folder: load(self, folder / "elsewhere"))
    message = refusal(two_checkpoints, resume=True)
    assert "`dir` must be on a disk that every node shares" in message
    assert "damaged" not in message


@pytest.mark.parametrize("how", ["cut", "removed", "a folder", "a pipe"])
def test_an_older_checkpoint_does_not_take_the_place_of_a_damaged_one_unnoticed(
    how: str, two_checkpoints: Config
):
    manifest = two_checkpoints.run_dir / "checkpoints" / "step_000002" / "checkpoint.json"
    if how == "cut":
        cut(manifest)
    else:
        manifest.unlink()
    if how == "a folder":
        manifest.mkdir()
    elif how == "a pipe":
        os.mkfifo(manifest)
    message = refusal(two_checkpoints, resume=True)
    assert "step_000002 is damaged: checkpoint.json cannot be read" in message
    assert "move step_000002 away to continue from step_000001" in message


def test_a_checkpoint_under_the_name_of_another_step_is_refused(two_checkpoints: Config):
    folder = two_checkpoints.run_dir / "checkpoints"
    (folder / "step_000002").rename(folder / "aside")
    (folder / "step_000001").rename(folder / "step_000002")
    message = refusal(two_checkpoints, resume=True)
    assert "step_000002 is damaged: checkpoint.json is that of step 1" in message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trained": None}, "`trained`"),
        ({"trained": 5}, "`trained`"),
        ({"actor": None}, "`actor`"),
        ({"reward_in_python": None}, "`reward_in_python`"),
        ({"files": None}, "cannot be read"),
        ({"files": 5}, "`files`"),
        ({"files": {"state.pt": 5}}, "`state.pt`"),
        ({"files": {"state.pt": {"bytes": 5}}}, "`state.pt`"),
    ],
)
def test_a_manifest_with_a_missing_or_wrong_field_names_it_and_the_remedy(
    changes: dict[str, Any], told: str, two_checkpoints: Config
):
    newest = two_checkpoints.run_dir / "checkpoints" / "step_000002"
    edit_json(newest / "checkpoint.json", **changes)
    message = refusal(two_checkpoints, resume=True)
    assert f"{newest} is damaged: checkpoint.json " in message
    assert told in message
    assert "move step_000002 away to continue from step_000001" in message


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another_state(path: Path) -> None:
    torch.save([1, 2], path)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (file, damage)
        for file in ("state.pt", "shards/actor/.metadata")
        for damage in (empty, wipe, cut)
    ]
    + [("state.pt", another_state)],
)
def test_a_damaged_file_with_a_matching_checksum_is_named_too(
    file: str, damage: Callable[[Path], None], two_checkpoints: Config
):
    newest = two_checkpoints.run_dir / "checkpoints" / "step_000002"
    damage(newest / file)
    listed = json.loads((newest / "checkpoint.json").read_text("utf-8"))["files"]
    entry = describe_file(newest / file).model_dump()
    edit_json(newest / "checkpoint.json", files=listed | {file: entry})
    message = refusal(two_checkpoints, resume=True)
    assert f"{newest} is damaged: " in message
    assert "move step_000002 away to continue from step_000001" in message


def test_a_damaged_only_checkpoint_says_that_there_is_no_older_one(two_checkpoints: Config):
    folder = two_checkpoints.run_dir / "checkpoints"
    shutil.rmtree(folder / "step_000001")
    cut(folder / "step_000002" / "state.pt")
    assert "there is no older checkpoint" in refusal(two_checkpoints, resume=True)


@pytest.mark.parametrize("command", ["eval", "export"])
def test_eval_and_export_refuse_a_damaged_checkpoint(
    command: str, two_checkpoints: Config, tmp_path: Path, capsys: calls.Capture
):
    cut(two_checkpoints.run_dir / "checkpoints/step_000002/shards/actor/__0_0.distcp")
    out = [str(tmp_path / "out")] if command == "export" else []
    told = calls.refusal(capsys, command, str(two_checkpoints.run_dir), *out)
    assert "shards/actor/__0_0.distcp has" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "different", [{"seed": 1}, {"hidden": 8}, {"layers": 1}], ids=["weights", "width", "depth"]
)
def test_a_checkpoint_of_another_model_is_refused(
    different: dict[str, int], two_checkpoints: Config, job: Job, tmp_path: Path, tiny_model: Path
):
    other = write_tiny_model(tmp_path / "other", **different)
    message = refusal(job(("model.path", str(other))), resume=True)
    assert f"belongs to another model: it started from {tiny_model}" in message
    assert "use the model the run was started with, or another --name" in message
    Trainer(two_checkpoints, reward=length, resume=True).fit()  # nothing was lost by trying


@pytest.mark.parametrize(
    "different", [{"hidden": 8}, {"layers": 1}, {"layers": 3}], ids=["width", "shallower", "deeper"]
)
def test_a_checkpoint_of_another_critic_is_refused(
    different: dict[str, int], two_checkpoints: Config, job: Job, tmp_path: Path
):
    other = write_tiny_model(tmp_path / "other", **different)
    message = refusal(job(("model.critic_path", str(other))), resume=True)
    assert "critic" in message
    assert "another model" in message


def test_a_resume_that_fails_leaves_the_run_as_it_was(two_checkpoints: Config, job: Job):
    files = [path for path in two_checkpoints.run_dir.rglob("*") if path.is_file()]
    before = [path.read_bytes() for path in files]
    refusal(job(("device", "gpu")), resume=True)
    assert [path for path in two_checkpoints.run_dir.rglob("*") if path.is_file()] == files
    assert [path.read_bytes() for path in files] == before


def test_a_run_refused_for_its_data_leaves_an_existing_run_as_it_was(
    two_checkpoints: Config, job: Job, tmp_path: Path
):
    recipe = (two_checkpoints.run_dir / "config.toml").read_text("utf-8")
    refusal(job(("data.files", str(tmp_path / "nosuch.jsonl"))), resume=True)
    assert (two_checkpoints.run_dir / "config.toml").read_text("utf-8") == recipe


def test_checking_a_folder_without_a_checkpoint_names_it(tmp_path: Path):
    told = f"{tmp_path} is damaged: checkpoint.json cannot be read"
    with pytest.raises(TelescopeError, match=told):
        checkpoint.check(tmp_path)
