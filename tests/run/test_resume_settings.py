"""A resumed run: what comes from the checkpoint, what from the config, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telescope.commands import main
from telescope.config import to_toml
from telescope.errors import TelescopeError
from telescope.trainer import Trainer
from tests.run.compared import MakeConfig, StopAt, Train, constant, rows


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_resuming_a_finished_run_changes_nothing(config_in: MakeConfig, tmp_path: Path):
    config = config_in(tmp_path, ("steps", "1"))
    Trainer(config).fit()
    before = contents(config.run_dir)
    Trainer(config, resume=True).fit()
    assert contents(config.run_dir) == before


def test_resuming_a_run_of_no_steps_repeats_no_row(config_in: MakeConfig, tmp_path: Path):
    """One row: the policy after no steps is the one before, and no step is evaluated twice."""
    config = config_in(tmp_path, ("steps", "0"))
    for resume in (False, True):
        Trainer(config, resume=resume).fit()
        (row,) = rows(config)
        assert row["step"] == 0
        assert "eval/greedy_accuracy" in row


def test_a_finished_run_goes_on_when_given_more_steps(config_in: MakeConfig, tmp_path: Path):
    config = config_in(tmp_path, ("steps", "1"))
    Trainer(config).fit()
    Trainer(config_in(tmp_path, ("steps", "2")), resume=True).fit()
    steps = [row["step"] for row in rows(config)]
    assert steps == [0, 1, 1, 2, 2]  # twice: a step, and the evaluation after the last step


def test_resume_prints_what_changed_in_the_config(
    config_in: MakeConfig, tmp_path: Path, stopped: Train, capsys: pytest.CaptureFixture[str]
):
    config = config_in(tmp_path)
    stopped(config, "SIGTERM train 4")
    capsys.readouterr()
    recipe = str(config.run_dir / "config.toml")
    main(["train", recipe, "--resume", "--actor.lr=0.5", "--critic.clip_value=0.3"])
    printed = capsys.readouterr().out
    assert f"resuming {config.run_dir} after step 4" in printed
    assert "config changed: actor.lr: 0.001 → 0.5" in printed
    assert "config changed: critic.clip_value: 0.2 → 0.3" in printed
    assert printed.count("config changed") == 2


def test_resume_with_the_same_config_prints_no_change(
    config_in: MakeConfig, tmp_path: Path, stopped: Train, capsys: pytest.CaptureFixture[str]
):
    config = config_in(tmp_path, ("critic.clip_value", "none"))
    stopped(config, "SIGTERM train 4")
    capsys.readouterr()
    Trainer(config, resume=True).fit()
    assert "config changed" not in capsys.readouterr().out


def test_the_command_line_says_how_to_go_on_after_a_signal(
    config_in: MakeConfig, tmp_path: Path, stop_at: StopAt, capsys: pytest.CaptureFixture[str]
):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(config_in(tmp_path)), "utf-8")
    stop_at("SIGTERM train 2")
    with pytest.raises(SystemExit) as end:
        main(["train", str(recipe)])
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith(
        "\nstopped by SIGTERM after step 2, which is saved: continue with --resume\n"
    )


def test_a_setting_changed_on_resume_counts(make_config):
    Trainer(make_config(("steps", "1")), reward=constant).fit()
    changed = make_config(("steps", "2"), ("credit.kl_coef", "0.5"), ("actor.weight_decay", "0.1"))
    trainer = Trainer(changed, reward=constant, resume=True)
    assert trainer.kl_coef == 0.5
    groups = trainer.roles.actor.learner.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.1}


def test_resuming_with_another_reward_is_refused(make_config):
    Trainer(make_config(("steps", "1")), reward=constant).fit()
    told = "was trained with the reward constant, not verdict, sum: pass the same reward="
    with pytest.raises(TelescopeError, match=told):
        Trainer(make_config(("steps", "2")), resume=True)


def test_a_bfloat16_run_resumes_from_its_float32_masters(make_config, tmp_path: Path):
    """Steps far below bfloat16's resolution: a resume from the rounded weights would lose them."""
    settings = (
        ("model.dtype", "bfloat16"),
        ("actor.lr", "1e-5"),
        ("critic.lr", "1e-5"),
        ("checkpoint.every", "2"),
    )
    whole = make_config(*settings, ("steps", "4"), ("name", "whole"))
    part = make_config(*settings, ("steps", "4"), ("name", "part"))
    Trainer(whole, reward=constant).fit()
    Trainer(part.model_copy(update={"steps": 2}), reward=constant).fit()
    resumed = Trainer(part, reward=constant, resume=True)
    learner = resumed.roles.actor.learner
    assert any(not torch.equal(master, master.bfloat16().float()) for master in learner.masters)
    for weight, master in zip(learner.weights, learner.masters, strict=True):
        assert torch.equal(weight, master.to(weight.dtype))
    resumed.fit()
    after = [[row for row in rows(config) if row["step"] > 2] for config in (part, whole)]
    assert after[0] == after[1]
