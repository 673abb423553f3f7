"""The benchmark of verl: what verl is told, patched and measured by. verl need not be installed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import _verl_patches as patches
from benchmarks import verl_ppo
from benchmarks._verl_reward import compute_score
from telescope.config import load_config
from telescope.peers import Recorder
from tests.peers.batches import SETTINGS, batch

RECIPE = load_config(verl_ppo.RECIPE, [])


def told(*given: str) -> dict[str, str]:
    args = verl_ppo.parse(["model", *given])
    return dict(line.split("=", 1) for line in verl_ppo.overrides(args, RECIPE))


def test_verl_gets_the_batch_of_the_recipe_whatever_the_estimator() -> None:
    ppo = told("--steps", "1")
    grpo = told("--steps", "1", "--estimator", "grpo")
    for found, group in ((ppo, 1), (grpo, 4)):
        assert int(found["data.train_batch_size"]) * group == 512
        assert int(found["actor_rollout_ref.rollout.n"]) == group
        # verl multiplies its minibatch by the responses to one question
        assert int(found["actor_rollout_ref.actor.ppo_mini_batch_size"]) * group == 512 // 4
    assert ppo["critic.optim.lr"] == "2e-05"
    assert not any("critic" in name for name in grpo)


def test_only_a_watched_run_has_the_plugin_and_only_a_dry_run_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TELESCOPE_WATCH", raising=False)

    def variables(*given: str) -> dict[str, str]:
        args = verl_ppo.parse(["model", "--steps", "1", "--out", str(tmp_path), *given])
        return verl_ppo.environment(args, ["poll"])

    plain = variables()
    assert plain["VERL_USE_EXTERNAL_MODULES"] == "benchmarks._verl_patches"
    assert "TELESCOPE_WATCH" not in plain
    assert "VERL_PLATFORM" not in plain
    dry = variables("--watch", "--device", "cpu")
    assert dry["VERL_USE_EXTERNAL_MODULES"].split(",") == [
        "benchmarks._verl_cpu",
        "benchmarks._verl_patches",
        "telescope.peers.verl_plugin",
    ]
    assert dry["TELESCOPE_WATCH"] == str(tmp_path / "watched")
    assert dry["TELESCOPE_VERL_PATCHES"] == "poll"


def test_verl_rewards_as_the_recipe_does() -> None:
    def of(text: str) -> float:
        return compute_score("gsm8k", text, "1000")["score"]

    assert of("#### 1,000") == pytest.approx(0.9 + 0.1)
    assert of("#### 7") == pytest.approx(0.1)
    assert of("1000") == 0
    assert compute_score("gsm8k", "it is 1000", "1000")["lenient"] == 1


def log(step: int, at: float, seconds: float, **more: float) -> dict[str, Any]:
    data = {
        "timing_s/step": seconds,
        "clock/time": at,
        "clock/validated": 0.0,
        "actor/perf/max_memory_allocated_gb": 3.0,
    }
    return {"step": step, "data": data | more}


def test_validations_are_no_training_time_and_the_first_step_is_in_no_median() -> None:
    score = {"critic/score/mean": 0.2, "val-aux/openai/gsm8k/score/mean@1": 0.9}
    accuracy = {"val-core/openai/gsm8k/acc/mean@1": 0.5, "val-aux/openai/gsm8k/form/mean@1": 0.7}
    rows = [
        {"step": 0, "data": accuracy},
        log(1, 150.0, 40.0, **{"clock/validated": 30.0}),
        log(2, 160.0, 9.0, **{"clock/validated": 30.0}),
        log(3, 190.0, 10.0, **{"clock/validated": 50.0}, **accuracy, **score),
    ]
    found = verl_ppo.summary(rows, started=100.0)
    assert found["start_to_first_update_seconds"] == 20.0  # 150 − 100 − 30
    assert found["step_seconds"] == 9.5
    assert found["training_seconds"] == 59.0
    assert found["periods"] == {2: 10.0, 3: 10.0}  # 190 − 160 − 20
    assert found["curve"][0] == {"step": 0, "seconds": 0.0, "acc": 0.5, "form": 0.7}
    assert found["curve"][-1]["seconds"] == 59.0
    assert found["curve"][-1]["acc"] == 0.5
    assert found["curve"][-1]["score"] == 0.2  # of training, not of the validation


def test_what_was_watched_is_recomputed_and_a_wrong_number_is_counted(tmp_path: Path) -> None:
    given = batch()
    for name, change in (("right", 0.0), ("wrong", 0.5)):
        recorder = Recorder(tmp_path / name, settings=SETTINGS, strict=True)
        returns = given["returns"].clone()
        returns[1, 0] += change
        recorder.record(2, **given | {"returns": returns})
        recorder.close()
    right = verl_ppo.recomputed(tmp_path / "right")
    assert right["responses"] == 6
    assert right["columns"]["return"]["worst"] < 1e-5
    assert right["columns"]["return"]["tokens"] == int(given["mask"].sum())
    wrong = verl_ppo.recomputed(tmp_path / "wrong")
    assert wrong["columns"]["return"]["wrong"] == 1
    assert wrong["columns"]["return"]["worst"] == pytest.approx(0.5, abs=1e-5)


def test_watched_steps_are_compared_with_the_others_after_both_have_warmed_up(
    tmp_path: Path,
) -> None:
    periods = {2: 99.0, 3: 1.0, 4: 2.0, 5: 3.0, 6: 4.0}
    found = verl_ppo.watching(tmp_path, periods)
    assert (found["watched_seconds"], found["unwatched_seconds"]) == (3.0, 2.0)


def test_the_budget_ends_training_with_the_step_that_fills_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class PPOTrainer:
        total_training_steps = 100
        global_steps = 0

        def _compute_metrics(self, batch: Any, metrics: Any, timing: Any) -> None:
            pass

    monkeypatch.setenv("TELESCOPE_VERL_SECONDS", "35")
    patches.budget(SimpleNamespace(PPOTrainer=PPOTrainer))  # type: ignore[arg-type]
    trainer: Any = PPOTrainer()
    while trainer.global_steps < trainer.total_training_steps:
        trainer.global_steps += 1
        trainer._compute_metrics(None, {}, {"step": 10.0})
    assert trainer.global_steps == 4  # 40 s: a fourth step of 10 s is the one that fills 35 s


def test_responses_are_looked_for_often() -> None:
    class ReplayBuffer:
        def __init__(self, poll_interval: float = 2.0) -> None:
            self.poll_interval = poll_interval

    module: Any = ModuleType("replay_buffer")
    module.ReplayBuffer = ReplayBuffer
    patches.poll(module)
    assert ReplayBuffer().poll_interval == 0.02


def test_an_unknown_patch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verl_ppo.parse(["model", "--steps", "1", "--without", "magic"])
    assert "critic-attention" in capsys.readouterr().err


def test_a_run_is_not_written_over_another(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("", "utf-8")
    with pytest.raises(SystemExit, match="holds a run: give another folder with --out"):
        verl_ppo.main(verl_ppo.parse(["tiny", "--steps", "1", "--out", str(tmp_path)]))
