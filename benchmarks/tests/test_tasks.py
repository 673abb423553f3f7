"""The benchmark of many tasks: its tasks can be solved, and what it keeps is what a run measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tasks
from telescope.config import load_config
from telescope.data import gym
from tests.test_recipes import write_model

pytest.importorskip("reasoning_gym", reason="the extra `gym` is not installed")


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_right_answer_of_every_task_is_worth_a_point_and_fits(task: str) -> None:
    data = tasks.TASKS[task]
    config = load_config(tasks.RECIPE)
    options = data.get("options", {})
    entry = gym.rows(task, options, 20, config.data.instruction)[0][0]["entry"]
    score = gym.scorer(task, options, data.get("answer"), partial_credit=config.data.partial_credit)
    answer = str(entry["answer"])
    assert score([answer, "zzz"], [entry, entry]) == [1.0, 0.0]
    assert len(answer) < config.rollout.max_response_tokens  # a token is at least a character


def test_a_run_leaves_its_first_and_last_values_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", "llama")
    small = ["rollout.batch_size=8", "data.size=40", "eval.every=1", "eval.samples=8"]
    small += ["eval.prompts=8", "model.dtype=float32", "device=cpu"]
    command = ["tasks.py", "--only", "syllogism", "--steps", "2", "--parallel", "1"]
    command += ["--model", str(model), "--out", str(tmp_path / "out")]
    for setting in small:
        command += ["--set", setting]
    monkeypatch.setattr("sys.argv", command)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            tasks.main()
        assert ended.value.code == 0, capsys.readouterr().err
    (line,) = (tmp_path / "out" / "reasoning-gym.jsonl").read_text("utf-8").splitlines()
    row = json.loads(line)
    assert (row["task"], row["steps"]) == ("syllogism", 2)
    assert row["greedy"] == [0.0, 0.0]  # random weights do not say Yes or No
    assert 0 < row["entropy"][0] <= row["highest_entropy"]
    page = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "| syllogism | 0.000 → 0.000 | 0.000 → 0.000 |" in page
