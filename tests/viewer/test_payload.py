from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from telescope.errors import TelescopeError
from telescope.ledger import reader as ledger
from telescope.viewer.payload import dumps, page_sample, page_traces
from telescope.viewer.run_data import MAX_POINTS, RunData, curves
from tests.viewer.fake import EOS, fake_run, hostile, lesson, sample, step_of


def test_viewer_imports_no_torch() -> None:
    modules = ("payload", "report", "run_data", "server", "whatif")
    names = ", ".join(f"telescope.viewer.{module}" for module in modules)
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_run_info_has_steps_and_curves_and_skips_a_line_cut_in_half(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    info = RunData(run).info()
    assert info["steps"] == [10, 20, 30, 40]
    assert info["curves"]["reward/kl"][-1][0] == 40
    assert [point[0] for point in info["curves"]["eval/greedy_accuracy"]] == [0, 10, 20, 30, 40]


def test_long_curves_are_thinned_and_keep_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"step": i, "reward/kl": i / 7}) + "\n" for i in range(2_000)), "utf-8"
    )
    points = curves(path)["reward/kl"]
    assert len(points) == MAX_POINTS
    assert (points[0][0], points[-1][0]) == (0, 1_999)


def test_a_step_is_read_once_and_only_when_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake_run(tmp_path / "run")
    reads: list[int] = []
    read = ledger.read
    monkeypatch.setattr(ledger, "read", lambda run, step: reads.append(step) or read(run, step))
    data = RunData(run)
    data.info()
    assert reads == []
    data.sample(20, 0)
    data.sample(20, 1)
    data.index(20)
    assert reads == [20]


def test_page_sample_keeps_the_recorded_numbers() -> None:
    page = page_sample(lesson()[0])
    assert page["columns"]["deltas"] == pytest.approx(
        [0.135, 0.01, 0.041, 0.102, 0.161, 0.05, 0.07]
    )
    assert page["columns"]["advantages"][3] == pytest.approx(0.36009, abs=1e-5)
    assert page["columns"]["ratio"][3] == pytest.approx(1.234)
    assert page["clipped"] == [3]
    assert bytes(page["token_bytes"][3]).decode() == "等于"


def test_every_trace_of_the_lesson_agrees_and_has_its_words_in_both_languages() -> None:
    for one in lesson():
        for t in range(len(one)):
            words: dict[str, Any] = {}
            found = page_traces(one, t, words)
            assert bool(found) == bool(one.mask[t])
            assert all(trace["ok"] is not False for trace in found)
            assert {trace["words"] for trace in found} == set(words)
            assert all(set(entry) == {"zh", "en"} for entry in words.values())


def test_a_long_response_is_cut_and_says_its_length() -> None:
    long = step_of([sample(["好"] * 3_000, [0.5] * 3_000, [0.0] * 3_000, score=1.0)], 1)[0]
    page = page_sample(long, max_tokens=100)
    assert len(page["token_bytes"]) == 100
    assert {len(column) for column in page["columns"].values()} == {100}
    assert len(page["mask"]) == page["length"] == 3_000


def test_a_number_that_is_not_finite_becomes_null() -> None:
    one = sample(["2", EOS], [0.5, 0.6], [0.0, 0.0], score=1.0)
    one = replace(one, score=float("nan"), columns={**one.columns, "values": [float("inf"), 0.6]})
    page = json.loads(dumps(page_sample(one)))
    assert page["score"] is None
    assert page["columns"]["values"] == [None, 0.6]


def test_hostile_samples_are_small_strict_json() -> None:
    for one in hostile():
        assert len(dumps(page_sample(one))) < 20_000


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    assert json.loads(dumps({"prompt": "\udc80 半"})) == {"prompt": "\udc80 半"}


def test_index_tells_clipped_and_flipped_apart(tmp_path: Path) -> None:
    rows = RunData(fake_run(tmp_path / "run")).index(40)
    assert [row["right"] for row in rows] == [True, False, True, True, False, True]
    assert [row["clipped"] for row in rows] == [True, True, False, True, True, False]
    assert rows[5]["flipped"]
    assert rows[0]["prompt_key"] == rows[1]["prompt_key"] != rows[4]["prompt_key"]


def test_a_missing_run_or_sample_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="no run"):
        RunData(tmp_path / "nothing")
    with pytest.raises(
        TelescopeError,
        match=r"is not a run folder: it has no config\.toml or metrics\.jsonl or ledger;",
    ):
        RunData(tmp_path)
    run = fake_run(tmp_path / "run")
    data = RunData(run)
    with pytest.raises(TelescopeError, match="no such step"):
        data.index(11)
    with pytest.raises(TelescopeError, match="0 to 5"):
        data.sample(40, 6)


def test_a_run_is_known_by_any_of_what_it_writes(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()  # just begun
    assert RunData(tmp_path).info()["steps"] == []
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(TelescopeError, match=r"metrics\.jsonl cannot be read: Is a directory"):
        RunData(tmp_path).info()


def test_the_steps_of_a_prompt_are_those_that_recorded_it(tmp_path: Path) -> None:
    others = [s for s in lesson(20) if s.prompt != lesson(20)[0].prompt]
    data = RunData(
        fake_run(tmp_path / "run", {10: lesson(10), 20: step_of(others, 20), 30: lesson(30)})
    )
    key = data.index(10)[0]["prompt_key"]
    assert data.steps_of_prompt(key) == [10, 30]
    assert data.steps_of_prompt("nosuch") == []


def test_words_of_one_quantity_differ_with_its_formula() -> None:
    """With a dual clip a negative advantage has a floor, and so a text of its own."""
    from telescope.explain.numbers import from_numbers

    numbers = {
        "rewards": [1.0, -1.0],
        "values": [0.0, 0.0],
        "old": [-1.0, -1.0],
        "new": [-0.5, -0.5],
        "lam": 0.0,
        "dual_clip": 3.0,
    }
    words: dict[str, Any] = {}
    found = [
        {trace["name"]: trace for trace in page_traces(from_numbers(numbers), t, words)}["clip"][
            "words"
        ]
        for t in (0, 1)
    ]
    assert found[0] != found[1]
    assert "not below a floor" in words[found[1]]["en"]["formula_in_words"]
    assert "not below" not in words[found[0]]["en"]["formula_in_words"]
