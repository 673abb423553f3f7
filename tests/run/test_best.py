"""The best checkpoint is kept, and a run that no longer improves ends early."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope import Config, Trainer
from telescope.commands import main
from telescope.config import EvalConfig, to_toml
from telescope.errors import TelescopeError
from telescope.run.best import Best
from telescope.run.evaluate import Evaluation
from telescope.run.manifest import list_checkpoints
from telescope.run.proof import _side_config

METRIC = "eval/greedy_accuracy"
ACCURACIES = [0.9, 0.1, 0.5, 0.2, 0.5, 0.4, 0.8]
"""After each step. The start does not count, and an equal value is no improvement."""


@pytest.mark.parametrize(("mode", "best", "waited"), [("max", (2, 0.5), 2), ("min", (1, 0.1), 3)])
def test_the_best_of_four_evaluations(mode: str, best: tuple[int, float], waited: int) -> None:
    found = Best(EvalConfig(best=METRIC, best_mode=mode, every=1))
    for step, value in enumerate([0.1, 0.5, 0.5, math.nan], 1):
        found.note(step, {METRIC: value})
    assert (found.step, found.value) == best
    assert found.waited == waited


def test_patience_is_used_up_by_evaluations_without_a_better_one() -> None:
    found = Best(EvalConfig(best=METRIC, every=1, patience=2))
    ended = []
    for step, value in enumerate([0.3, 0.2, 0.4, 0.4, 0.1], 1):
        found.note(step, {METRIC: value})
        ended.append(found.ends_run)
    assert ended == [False, False, False, False, True]


@pytest.fixture
def scripted(make_config, monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripted(name, …): a run whose evaluations find ACCURACIES, with one checkpoint kept."""

    def make(name: str, *settings: tuple[str, str]) -> Config:
        return make_config(
            ("name", name),
            ("steps", "6"),
            ("rollout.batch_size", "2"),
            ("rollout.max_response_tokens", "2"),
            ("ledger.samples", "off"),
            ("eval.every", "1"),
            ("eval.best", METRIC),
            ("eval.patience", "3"),
            ("checkpoint.every", "0"),
            ("checkpoint.keep", "1"),
            *settings,
        )

    def evaluate(actor: Any, reward: Any, sets: Any, config: Config) -> Evaluation:
        return Evaluation({METRIC: ACCURACIES[actor.learner.updates]}, [])

    monkeypatch.setattr("telescope.run.lifecycle.evaluate_sets", evaluate)
    return make


def names(config: Config) -> list[str]:
    return [path.name for path in list_checkpoints(config.run_dir / "checkpoints")]


def test_a_run_ends_early_and_keeps_its_best_checkpoint(
    scripted: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = scripted("run")
    trainer = Trainer(config)
    assert trainer.fit()[METRIC] == 0.4
    assert [row["step"] for row in trainer.history()] == [0, 1, 2, 3, 4, 5]
    assert names(config) == ["step_000002", "step_000005"]
    out = capsys.readouterr().out
    assert f"stopped after step 5: {METRIC} has not improved in 3 evaluations" in out
    assert "the best is 0.5 at step 2" in trainer.summary()
    main(["export", str(config.run_dir), str(tmp_path / "best"), "--best"])
    assert "exported step 2:" in capsys.readouterr().out


def test_resume_keeps_the_counter_of_early_stopping(
    scripted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    unbroken = scripted("unbroken")
    Trainer(unbroken).fit()
    config = scripted("resumed")
    Trainer(config).fit(until=4)
    trainer = Trainer(config, resume=True)
    assert (trainer.best.step, trainer.best.waited) == (2, 2)
    trainer.fit()
    assert names(config) == names(unbroken)
    states = [
        torch.load(run.run_dir / "checkpoints" / "step_000005" / "state.pt")["best"]
        for run in (config, unbroken)
    ]
    assert states[0] == states[1]
    capsys.readouterr()

    ended = Trainer(config, resume=True)
    ended.fit()
    assert ended.step == 5  # it has ended: nothing is trained
    assert "stopped after step 5" in capsys.readouterr().out
    more = Trainer(scripted("resumed", ("eval.patience", "4")), resume=True)
    more.fit()
    assert more.step == 6
    assert more.best.step == 6


def test_a_metric_that_the_evaluation_does_not_have_is_refused_before_training(
    scripted: Any,
) -> None:
    trainer = Trainer(scripted("run", ("eval.best", "eval/gredy")))
    with pytest.raises(TelescopeError, match=f"'eval/gredy' is no metric .* there are {METRIC}"):
        trainer.fit()
    assert trainer.step == 0


def test_the_two_sides_of_a_proof_do_not_end_early(scripted: Any, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(scripted("run")), "utf-8")
    side = _side_config(tmp_path, tmp_path / "proof", "changed", {"actor.lr": 1e-5}, trusted=True)
    assert side.eval.every == 1
    assert side.eval.patience == 0
