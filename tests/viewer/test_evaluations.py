"""The answers of an evaluation as the page asks for them, and in a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.errors import TelescopeError
from telescope.ledger.completions import Completion, save_completions
from telescope.ledger.reader import path_of
from telescope.viewer.api import Api
from telescope.viewer.report_data import report_data
from telescope.viewer.runs import Runs
from tests.viewer.training import training_run


def answer(text: str, correct: bool, kind: str = "greedy", name: str = "") -> Completion:
    return Completion(name, kind, 0, "请问1+1=2？", text, float(correct), correct, {})


def with_answers(run: Path, step: int = 40) -> Path:
    """A run whose evaluation has three greedy answers, a sampled one and one of another set."""
    answers = [
        answer("是的，等于2！", correct=True),
        answer("不对<b>", correct=False),
        answer("x" * 5000, correct=False),
        answer("是的", correct=True, kind="sampled"),
        answer("2", correct=True, name="math"),
    ]
    save_completions(answers, path_of(run, step, "completions"))
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return with_answers(training_run(tmp_path / "run"))


def asked(run: Path, query: str) -> dict:
    return Api(Runs(run)).answer_address(f"/api/runs/run/evaluations/40/answers?{query}")


def test_answers_are_chosen_by_set_kind_and_verdict(run: Path) -> None:
    assert Api(Runs(run)).answer("/api/runs/run")["evaluations"] == [40]
    found = asked(run, "set=&kind=greedy&is=all")
    assert found["sets"] == ["", "math"]
    assert found["kinds"] == ["greedy", "sampled"]
    assert (found["right"], found["total"], found["count"]) == (1, 3, 3)
    assert found["rows"][0] == {
        "user": "请问1+1=2？", "response": "是的，等于2！", "score": 1.0, "right": True,
    }  # fmt: skip
    wrong = asked(run, "set=&kind=greedy&is=wrong")
    assert (wrong["count"], wrong["total"]) == (2, 3)
    assert len(wrong["rows"][1]["response"]) <= 2000
    assert asked(run, "set=math")["rows"][0]["response"] == "2"
    assert asked(run, "set=nosuch&kind=nosuch")["set"] == ""


def test_a_report_holds_the_greedy_answers_of_the_last_evaluation(run: Path) -> None:
    answers = report_data(Runs(run), room=4_000_000)["answers"]
    assert answers["api/runs/run"]["evaluations"] == [40]
    held = answers["api/runs/run/evaluations/40/answers?set=&kind=greedy&is=wrong"]
    assert held["count"] == 2
    assert held["sets"] == [""]


def test_a_file_without_answers_costs_the_list_alone(run: Path) -> None:
    save_completions([], path_of(run, 40, "completions"))
    with pytest.raises(TelescopeError, match="after step 40 has no answers"):
        asked(run, "")
    assert report_data(Runs(run), room=4_000_000)["answers"]["api/runs/run"]["evaluations"] == []
