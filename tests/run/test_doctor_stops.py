"""`doctor.stop_on` saves and ends a run, and resuming continues it bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from telescope.config import Config
from telescope.doctor import Watcher
from telescope.run.lifecycle import Diagnosed
from telescope.trainer import Trainer
from tests.run.compared import rows


def always_half(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [0.5] * len(completions)


def test_a_constant_reward_ends_the_run_and_resuming_is_exact(
    make_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ("steps", "10")
    stop_on = ("doctor.stop_on", "constant_reward,kl_runaway")
    stopped = Trainer(make_config(steps, stop_on), reward=always_half)
    with pytest.raises(Diagnosed, match="stop_on = constant_reward after step 8, which is saved"):
        stopped.fit()
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("doctor:")]
    assert said[-1] == (
        "doctor: step 8: Every response gets the same score, 0.5, step after step. (constant_reward)"
    )
    assert (stopped.checkpoints / "step_000008").is_dir()

    resumed = Trainer(make_config(steps, stop_on), reward=always_half, resume=True)
    resumed.fit()
    assert "doctor:" not in capsys.readouterr().out  # it was said before

    whole = make_config(steps, ("name", "whole"), ("doctor.watch", "false"))
    Trainer(whole, reward=always_half).fit()
    assert rows(resumed.config) == rows(whole)


def test_the_evaluation_before_training_is_looked_at_too(
    make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, dict[str, float]] = {}
    look = Watcher.step
    monkeypatch.setattr(
        Watcher, "step", lambda self, step, row: seen.update({step: row}) or look(self, step, row)
    )
    Trainer(make_config(("steps", "2"))).fit()
    assert list(seen) == [0, 1, 2]
    assert "eval/greedy_accuracy" in seen[0]
