"""telescope compare: groups, mean and spread, final and best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from telescope.config import Config, to_toml
from telescope.errors import TelescopeError
from telescope.viewer.compared import Spread, compare
from tests import ROOT
from tests.commands.calls import Capture, printed, refusal


def write_run(name: str, accuracies: list[float], **settings: Any) -> None:
    """A run folder with a config, and an accuracy every 10 steps."""
    config = Config(dir="runs", name=name, **settings)
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "config.toml").write_text(to_toml(config), "utf-8")
    rows = [
        {"step": 10 * i, "eval/greedy_accuracy": x, "reward/score_mean": 0.5}
        for i, x in enumerate(accuracies)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (config.run_dir / "metrics.jsonl").write_text(lines, "utf-8")


@pytest.fixture
def runs() -> list[Path]:
    write_run("lr-low-0", [0.2, 0.5, 0.5], seed=0, actor={"lr": 1e-6})
    write_run("lr-low-1", [0.2, 0.8, 0.7], seed=1, actor={"lr": 1e-6})
    write_run("lr-high", [0.2, 0.9, 0.1], seed=0, actor={"lr": 1e-4})
    return [Path("runs")]


def test_seeds_are_one_row_with_mean_and_spread(runs: list[Path]):
    high, low = compare(runs)
    assert low.seeds == [0, 1]
    result = low.results["eval/greedy_accuracy"]
    assert result.final.mean == pytest.approx(0.6)
    assert result.final.std == pytest.approx(0.1414, abs=1e-4)  # n − 1
    assert result.best.mean == pytest.approx(0.65)
    assert high.results["eval/greedy_accuracy"].final == Spread(0.1, None)
    assert high.results["eval/greedy_accuracy"].best == Spread(0.9, None)


def test_only_settings_that_differ_between_groups_are_shown(runs: list[Path]):
    high, low = compare(runs)
    assert (high.settings, low.settings) == ({"actor.lr": 1e-4}, {"actor.lr": 1e-6})


def test_a_run_that_is_named_twice_counts_once(runs: list[Path]):
    high, low = compare([*runs, Path("runs/lr-high"), Path("runs/../runs/lr-low-1")])
    assert (len(high.runs), len(low.runs)) == (1, 2)


def test_less_is_better_where_it_is_said(runs: list[Path]):
    _, low = compare(runs, ["eval/greedy_accuracy:min"])
    assert low.results["eval/greedy_accuracy:min"].best.mean == pytest.approx(0.2)


def test_a_metric_that_no_run_has_is_refused(runs: list[Path]):
    with pytest.raises(TelescopeError, match="choose from eval/greedy_accuracy, reward/score_mean"):
        compare(runs, ["actor/klll"])


@pytest.mark.usefixtures("runs")
def test_the_table_in_the_docs_is_the_one_that_is_printed(capsys: Capture):
    page = (ROOT / "docs" / "many-runs.md").read_text("utf-8")
    command = "telescope compare runs/lr-low-0 runs/lr-low-1 runs/lr-high"
    assert f"```bash\n{command}\n```" in page
    table = "\n".join(line.rstrip() for line in printed(capsys, *command.split()[1:]).splitlines())
    assert f"```text\n{table}\n```" in page


def test_many_differing_settings_get_a_table_of_their_own(capsys: Capture):
    write_run("a", [0.5])
    other = {"lr": 1e-4, "epochs": 2, "minibatches": 2, "weight_decay": 0.1}
    write_run("b", [0.5], actor=other, steps=7)
    shown = printed(capsys, "compare", "runs")
    assert "setting" in shown
    assert "actor.epochs" in shown


def test_many_runs_with_many_settings_stay_readable(capsys: Capture):
    for number in range(30):
        odd = {"epochs": 1 + number % 2, "minibatches": 1 + number % 2, "lr": 1e-6 * (number + 1)}
        write_run(f"run-{number}", [0.5], steps=100 + number, actor=odd, credit={"lam": 0.5})
    write_run("other", [0.5], critic={"lr": 3e-3}, checkpoint={"every": 7})
    shown = printed(capsys, "compare", "runs")
    (line,) = [line for line in shown.splitlines() if line.startswith("critic.lr")]
    assert line.split() == ["critic.lr", "0.003", "1"]


def test_text_of_the_runs_is_printed_as_it_is(capsys: Capture):
    """A terminal obeys ESC, and rich takes [b] for a style and :key: for a picture."""
    write_run("b[b]", [0.5], data={"prompt_key": "[a-z]+:key:"})
    write_run("esc", [0.5], data={"prompt_key": "\x1b[31m"})
    said = printed(capsys, "compare", "runs")
    assert "b[b]" in said
    assert "[a-z]+:key:" in said
    assert "␛[31m" in said
    assert "\x1b" not in said


def test_a_folder_without_runs_is_one_line(capsys: Capture):
    assert "no run nothing" in refusal(capsys, "compare", "nothing")


@pytest.mark.usefixtures("runs")
def test_json_has_the_numbers_of_every_run(capsys: Capture):
    groups = json.loads(printed(capsys, "compare", "runs", "--json"))
    assert groups[1]["results"]["eval/greedy_accuracy"]["runs"]["runs/lr-low-1"] == [0.7, 0.8]
