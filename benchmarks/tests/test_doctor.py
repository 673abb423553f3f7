"""benchmarks/doctor.py: cases are what they say, halves do not overlap, verdicts are counted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from telescope.config import changes
from tests import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
first = importlib.import_module("_doctor_cases")
cases = importlib.import_module("_doctor_more_cases")
jobs = importlib.import_module("_doctor_job")
peers = importlib.import_module("_doctor_peers")
rewards = importlib.import_module("_doctor_rewards")
tables = importlib.import_module("_doctor_table")

BY_NAME = {case.name: case for case in cases.CASES}


def differences(name: str) -> list[str]:
    """What a case's run sets differently from the healthy base."""
    folder = Path("somewhere")
    base = jobs.config_of(BY_NAME["base"], 0, folder)
    return [
        change
        for change in changes(base, jobs.config_of(BY_NAME[name], 0, folder))
        if not change.startswith("name:")
    ]


def test_there_are_twelve_of_each() -> None:
    assert (len(first.FAULTS), len(first.HEALTHY)) == (12, 12)
    assert len(BY_NAME) == len(cases.CASES)


def test_half_of_the_runs_is_for_tuning_and_every_case_is_in_both_halves() -> None:
    halves = {
        case.name: [cases.group_of(case, seed) == "tuning" for seed in cases.SEEDS]
        for case in first.FAULTS + first.HEALTHY
    }
    flat = [each for half in halves.values() for each in half]
    assert sum(flat) * 2 == len(flat)
    assert all(len(set(half)) == 2 for half in halves.values())


def test_further_cases_are_never_tuned_on() -> None:
    groups = {cases.group_of(case, seed) for case in cases.UNSEEN for seed in cases.SEEDS}
    assert groups == {"earlier", "read", "blind", "reported", "other", "settings"}
    assert groups < set(tables.GROUPS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lr-high", ["actor.lr: 0.0004 → 0.04"]),
        ("bonus", ["actor.entropy_coef: 0.02 → 1.0"]),
        ("cut-off", ["rollout.max_response_tokens: 8 → 4"]),
        ("kl-off", ["credit.kl_coef: 0.05 → 0.0"]),
        ("mismatch", []),  # a patch, not a setting
    ],
)
def test_a_case_changes_what_it_says_and_nothing_else(name: str, expected: list[str]) -> None:
    assert differences(name) == expected


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_every_case_is_a_valid_run_also_with_another_model(case: Any) -> None:
    assert jobs.config_of(case, 1, Path("x")).seed == 1
    if not case.toy:
        other = jobs.config_of(case, 1, Path("x"), jobs.Job("some/model", "cuda"))
        assert (other.model.path, other.device) == ("some/model", "cuda")


def test_the_digest_knows_the_seed_and_not_the_place() -> None:
    digests = {
        jobs.digest_of(case, seed, jobs.Job()) for case in cases.CASES for seed in cases.SEEDS
    }
    assert len(digests) == len(cases.CASES) * len(cases.SEEDS)


def test_the_rewards_have_the_fault_that_they_are_for() -> None:
    assert rewards.constant(["a", "b"], ["x", "y"]) == [0.5, 0.5]
    assert len(set(rewards.prompt_only(["a", "a"], ["x", "y"]))) == 1
    told = {"truth": [True, True], "answer": [2, 2]}
    answers = ["是的，等于2！", "不对，等于3！"]
    assert rewards.negated(["1+1=2"] * 2, answers, **told) == [-1, 0]
    assert rewards.next_row(["1+1=2"] * 2, answers, **told) == [0, 1]
    assert rewards.short(["1+1=2"] * 2, answers, **told) == pytest.approx([-0.4, -1.4])
    assert rewards.larger(["a"] * 3, ["等于9！", "等于0！", "1+1=2！"]) == pytest.approx(
        [0.72, 0, 1]
    )


# ---- verdicts


def verdict(expected: tuple[str, ...], *said: tuple[str, str], **more: Any) -> Any:
    given = {"case": "x", "what": "y", "seed": 0, "group": "held out", "said": list(said)}
    return tables.Verdict(expected=expected, **{**given, **more})


def test_a_fault_is_right_only_if_the_top_finding_names_it() -> None:
    assert verdict(("a",), ("a", "warning"), ("b", "warning")).is_right
    assert not verdict(("a",), ("b", "warning"), ("a", "warning")).is_right
    assert not verdict(("a",)).is_right


def test_a_note_is_no_finding() -> None:
    assert verdict(("a",), ("b", "note"), ("a", "serious")).is_right
    assert verdict(("a",), ("a", "note")).top == "–"


def test_a_healthy_run_may_have_warnings_and_no_serious_finding() -> None:
    assert verdict((), ("a", "warning")).is_right
    assert not verdict((), ("a", "warning"), ("b", "serious")).is_right


def test_another_tool_without_such_a_check_is_not_right() -> None:
    said = {"tool": [("Z", "critical")]}
    assert not verdict(("a",), peers=said).peer_is_right("tool")
    assert verdict(("a",), peers=said, peers_right={"tool": ("Z",)}).peer_is_right("tool")
    assert not verdict((), peers=said).peer_is_right("tool")


def test_a_line_of_the_table_counts_the_runs_of_a_case() -> None:
    said = {"tool": [("Z", "critical")]}
    runs = [
        verdict(("a",), ("a", "serious"), peers=said, peers_right={"tool": ("Z",)}),
        verdict(("a",), ("b", "serious"), peers=said),
    ]
    assert tables.table(runs, ["tool"])[2] == "| x | y | `a` ×1, `b` ×1 | 1/2 | 1/2 |"


def test_totals_count_the_halves_apart() -> None:
    lines = tables.totals(
        [
            verdict(("a",), ("a", "serious")),
            verdict(("a",), ("b", "serious")),
            verdict(("a",), ("a", "serious"), group="tuning"),
            verdict((), ("b", "serious")),
            verdict(("a",), ("a", "serious"), group="blind"),
        ]
    )
    shares = [line.split(" | ")[1].split(" ")[0] for line in lines[2:]]
    assert shares == ["1/2", "0/1", "1/1", "1/1"]


def test_numbers_reach_every_tool_under_its_own_name() -> None:
    row = {"reward/score_mean": 0.5, "reward/kl": 0.1, "eval/sampled_accuracy": 0.7}
    assert peers.renamed(row, "rldoctor") == {"reward_mean": 0.5, "kl": 0.1, "eval_score": 0.7}
    assert peers.renamed(row, "rlwatch") == {"reward_mean": 0.5, "kl_divergence": 0.1}


def test_other_tools_are_judged_by_cases_that_exist() -> None:
    assert set(peers.RIGHT) <= set(BY_NAME)
