"""A run that was stopped and resumed is the run that was never stopped, bit for bit."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.config import Config
from telescope.errors import WorkerError
from telescope.run import checkpoint
from telescope.run.lifecycle import Interrupted
from telescope.trainer import Trainer
from tests.fakes import tiny_config
from tests.run.compared import (
    STEPS,
    MakeConfig,
    StopAt,
    Train,
    assert_same_run,
    last_checkpoint,
    rows,
)


def test_the_runs_compared_here_use_everything_that_has_a_state(unbroken: Config):
    trained = [row for row in rows(unbroken) if "reward/kl_coef" in row]
    assert [row["step"] for row in trained] == [1, 2, 3, 4, 5]
    # The critic trains alone in the first step; β adapts once the actor trains.
    assert ["actor/lr" in row for row in trained] == [False, True, True, True, True]
    assert len({row["reward/kl_coef"] for row in trained}) == STEPS - 1
    assert len({row["critic/lr"] for row in trained}) > 2  # warm-up, then decay
    assert [row["step"] for row in rows(unbroken) if "eval/sampled_score" in row] == [0, 3, 5]


def test_the_same_config_twice_is_the_same_run(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    again = config_in(tmp_path)
    Trainer(again).fit()
    assert_same_run(unbroken, again)


def test_global_generators_matter_to_these_runs(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    """Otherwise the tests below would not notice a resume that forgets to restore them."""
    other = config_in(tmp_path)
    trainer = Trainer(other)
    torch.manual_seed(8)
    trainer.fit()
    assert rows(unbroken)[1] != rows(other)[1]


@pytest.mark.parametrize(
    ("name", "step"), [*(("SIGTERM", step) for step in range(1, STEPS)), ("SIGINT", 3)]
)
def test_resume_continues_bit_for_bit(
    name: str, step: int, unbroken: Config, config_in: MakeConfig, tmp_path: Path, stopped: Train
):
    config = config_in(tmp_path)
    message = stopped(config, f"{name} train {step}")
    assert message == f"stopped by {name} after step {step}, which is saved: continue with --resume"
    assert last_checkpoint(config).name == f"step_{step:06d}"
    assert not (config.run_dir / "metrics.discarded.jsonl").exists()
    torch.manual_seed(99)  # what this process drew meanwhile does not matter
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


def test_a_signal_in_the_last_step_costs_no_evaluation(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stop_at: StopAt
):
    config = config_in(tmp_path)
    stop_at(f"SIGTERM train {STEPS}")
    with contextlib.suppress(Interrupted):  # it may finish or stop: the resumed run is the same
        Trainer(config).fit()
    stop_at("SIGTERM train 9")
    Trainer(config, resume=True).fit()
    assert rows(config) == rows(unbroken)


def test_a_run_stopped_at_every_step_continues_bit_for_bit(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stop_at: StopAt
):
    config = config_in(tmp_path)
    stop_at("SIGTERM train 1")  # the first training step of each process
    for step in range(1, STEPS):
        with pytest.raises(Interrupted, match=f"after step {step},"):
            Trainer(config, resume=True).fit()
    stop_at("SIGTERM train 9")
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


@pytest.mark.parametrize(
    ("how", "saved", "redone"),
    [
        ("SIGKILL train 2", None, [1]),  # inside step 2, before there was any checkpoint
        ("SIGKILL train 4", "step_000002", [3]),  # inside step 4
        ("SIGKILL eval 6", "step_000004", [5]),  # after the last step, in the last evaluation
        ("save train 4", "step_000002", [3, 4]),  # while step 4 was being saved
    ],
    ids=["before-the-first-checkpoint", "in-a-step", "in-the-last-evaluation", "while-saving"],
)
def test_resume_after_kill_9_continues_bit_for_bit(
    how: str,
    saved: str | None,
    redone: list[int],
    unbroken: Config,
    config_in: MakeConfig,
    tmp_path: Path,
    killed: Train,
):
    config = config_in(tmp_path)
    killed(config, how)
    folder = config.run_dir / "checkpoints"
    found = checkpoint.list_checkpoints(folder)
    assert [path.name for path in found[-1:]] == ([saved] if saved else [])
    saved_step = int(saved.removeprefix("step_")) if saved else 0
    assert [row["step"] for row in rows(config) if row["step"] > saved_step] == redone
    leftovers = list(folder.glob(".*"))
    assert bool(leftovers) == how.startswith("save")

    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)
    discarded = (config.run_dir / "metrics.discarded.jsonl").read_text("utf-8")
    steps = [json.loads(line)["step"] for line in discarded.splitlines()]
    assert [step for step in steps if step > 0] == redone


def test_lines_of_metrics_that_are_not_rows_are_skipped(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stopped: Train
):
    """Whole ones, and the last one, of which a crash has written a half."""
    config = config_in(tmp_path)
    stopped(config, "SIGTERM train 3")
    with (config.run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 1, "reward/\xff\xfe": 0.5}\n\x80\x00\n')
        file.write(b'{"step": "two"}\n{"step": null}\n[4]\n')
        file.write(b'{"step": 4, "reward/score_me')
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


def test_a_restart_from_the_beginning_is_the_same_run(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
):
    """A worker is lost before the first checkpoint, when the reward has drawn numbers."""
    save, lost = checkpoint.save, [WorkerError("lost")]

    def lose_one(*args: Any, **named: Any) -> Path:
        if lost:
            raise lost.pop()
        return save(*args, **named)

    def noise(completions: list[str]) -> list[float]:
        return [random.random() + float(torch.rand(())) for _ in completions]

    def train(name: str) -> Config:
        config = tiny_config(tmp_path / name, tiny_model)
        trainer = Trainer(config, reward=noise)
        random.seed(7)
        torch.manual_seed(7)
        trainer.fit()
        return config

    monkeypatch.setattr(checkpoint, "save", lose_one)
    restarted = train("restarted")
    assert lost == []
    assert_same_run(train("undisturbed"), restarted)


def test_resume_names_the_damaged_files_of_the_ledger(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / unbroken.run_dir.name
    shutil.copytree(unbroken.run_dir, folder)
    for name in ("step_000004.parquet", "completions_000003.parquet"):
        (folder / "ledger" / name).write_bytes(b"PAR1")
    config = config_in(tmp_path, ("steps", str(STEPS + 1)))
    Trainer(config, resume=True).fit()
    line = f"damaged files of {folder / 'ledger'} are left out: step_000004.parquet, completions_"
    assert line in capsys.readouterr().out


def test_a_second_signal_ends_at_once_and_leaves_the_last_checkpoint(
    config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("reward.functions", "[]"))

    calls: list[str] = []

    def impatient(prompts: list[str], split: list[str]) -> list[float]:
        calls.append(split[0])
        if split[0] == "train" and calls.count("train") == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return [0.0] * len(prompts)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, reward=impatient).fit()
    assert last_checkpoint(config).name == "step_000002"
    assert signal.getsignal(signal.SIGINT) is before
