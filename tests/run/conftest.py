"""Fixtures for tests that stop, kill and resume runs."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from telescope.commands import main
from telescope.config import Config, to_toml
from telescope.run.lifecycle import Interrupted
from telescope.trainer import Trainer
from tests.fakes import tiny_config
from tests.run.compared import REWARD, STEPS, MakeConfig, StopAt, Train


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five training prompts, three held-out ones, and the reward function.

    Batches of four from five prompts cross the epochs.
    """
    folder = tmp_path_factory.mktemp("files")
    for split, count in (("train", 5), ("eval", 3)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for i in range(count):
                claim = "4" * (i % 3 + 1)
                row = {"prompt": f"请问{i}+{i}={claim}？", "split": split}
                file.write(json.dumps(row) + "\n")
    (folder / "reward.py").write_text(REWARD, "utf-8")
    return folder


@pytest.fixture(scope="session")
def config_in(files: Path, tiny_model: Path) -> MakeConfig:
    """config_in(folder, ("steps", "3"), …): a config that switches on everything with a state."""

    def make(folder: Path, *overrides: tuple[str, str]) -> Config:
        settings = {
            "steps": str(STEPS),
            "seed": "3",
            "data.files": str(files / "train.jsonl"),
            "data.eval_files": str(files / "eval.jsonl"),
            "data.max_prompt_tokens": "16",
            "reward.functions": f"{files / 'reward.py'}:noisy",
            "rollout.batch_size": "4",
            "rollout.n": "2",
            "eval.samples": "4",
            "eval.every": "3",
            "checkpoint.every": "2",
            "credit.kl_coef": "0.1",
            "credit.kl_target": "0.01",
            "credit.kl_horizon": "100",
            "critic_warmup": "1",
            "reward.normalise": "true",
            "reward.clip": "1.5",
            "reward.overlong_tokens": "3",
        }
        for role in ("actor", "critic"):
            settings |= {
                f"{role}.epochs": "2",
                f"{role}.minibatches": "2",
                f"{role}.schedule": "linear",
                f"{role}.warmup_steps": "2",
            }
        return tiny_config(folder, tiny_model, *settings.items(), *overrides)

    return make


@pytest.fixture(scope="session")
def unbroken(config_in: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run that was never stopped."""
    config = config_in(tmp_path_factory.mktemp("unbroken"))
    Trainer(config).fit()
    return config


@pytest.fixture
def stop_at(files: Path) -> Iterator[StopAt]:
    """stop_at("SIGTERM train 2"): makes the reward function send that signal at that call."""

    def write(how: str) -> None:
        (files / "stop").write_text(how)

    yield write
    (files / "stop").unlink(missing_ok=True)


@pytest.fixture
def stopped(stop_at: StopAt, files: Path) -> Train:
    """Trains in this process until the reward function stops the run; returns the message."""

    def train(config: Config, how: str) -> str:
        stop_at(how)
        with pytest.raises(Interrupted) as stop:
            Trainer(config).fit()
        (files / "stop").unlink()
        return str(stop.value)

    return train


@pytest.fixture
def killed(stop_at: StopAt, files: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains in another process until the reward function kills it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process, see tests/conftest.py
    # One server process imports torch; the processes that are killed are its forks.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["telescope.trainer"])

    def train(config: Config, how: str) -> str:
        recipe = config.run_dir.parent / "recipe.toml"
        recipe.write_text(to_toml(config), "utf-8")
        stop_at(how)
        process = processes.Process(target=main, args=(["train", str(recipe)],))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        (files / "stop").unlink()
        return "killed"

    return train
