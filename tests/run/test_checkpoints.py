"""Which checkpoints a run writes, keeps and finds again."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.run import checkpoint
from telescope.trainer import Trainer
from tests.run.compared import MakeConfig, Train, assert_same_run, constant


def test_a_leftover_temporary_checkpoint_is_ignored(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stopped: Train
):
    config = config_in(tmp_path)
    stopped(config, "SIGTERM train 2")
    folder = config.run_dir / "checkpoints"
    (folder / ".writing-step_000009-1" / "actor").mkdir(parents=True)
    assert [path.name for path in checkpoint.list_checkpoints(folder)] == ["step_000002"]
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (2, [4, 5]), (3, [3, 4, 5])])
def test_only_the_newest_checkpoints_stay(
    keep: int, left: list[int], config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("checkpoint.every", "1"), ("checkpoint.keep", str(keep)))
    Trainer(config).fit()
    found = sorted(path.name for path in (config.run_dir / "checkpoints").iterdir())
    assert found == [f"step_{step:06d}" for step in left]


def test_without_intermediate_checkpoints_only_the_last_step_is_saved(
    config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("checkpoint.every", "0"))
    Trainer(config).fit()
    assert [path.name for path in (config.run_dir / "checkpoints").iterdir()] == ["step_000005"]


def test_how_often_checkpoints_are_written_changes_nothing_else(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("checkpoint.every", "1"), ("checkpoint.keep", "1"))
    Trainer(config).fit()
    assert_same_run(unbroken, config)


def test_two_processes_cannot_train_one_run(make_config):
    config = make_config(("steps", "1"))

    def nested(completions: list[str]) -> list[float]:
        with pytest.raises(TelescopeError, match="another process is training"):
            Trainer(config, reward={"nested": constant}, resume=True).fit()
        return [1.0] * len(completions)

    Trainer(config, reward=nested).fit()


def test_a_checkpoint_set_aside_by_a_killed_process_comes_back(make_config):
    config = make_config(("steps", "1"))
    Trainer(config, reward=constant).fit()
    folder = config.run_dir / "checkpoints"
    (folder / "step_000001").rename(folder / ".replaced-step_000001-99")
    checkpoint.remove_leftovers(folder)
    assert [p.name for p in checkpoint.list_checkpoints(folder)] == ["step_000001"]
