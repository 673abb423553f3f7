from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from telescope.algorithms.definitions import ESTIMATORS
from telescope.errors import TelescopeError
from telescope.explain.instructive import instructive
from telescope.explain.settings import Settings
from telescope.explain.trace import Tracer, traces
from telescope.ledger import reader as ledger
from telescope.viewer import background
from telescope.viewer.payload import dumps, page_sample, page_traces
from telescope.viewer.run_data import RunData
from tests.viewer.fake import EOS, big_run, fake_run, hostile, lesson, sample, step_of


def test_viewer_imports_no_torch() -> None:
    modules = ("api", "payload", "report", "run_data", "runs", "server", "whatif")
    names = ", ".join(f"telescope.viewer.{module}" for module in modules)
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_step_is_read_once_and_only_when_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake_run(tmp_path / "run")
    reads: list[int] = []
    read = ledger.read

    def counted(of: Path, step: int, *more: Any, **named: Any) -> Any:
        if of == run:  # the background thread may still look at a run of an earlier test
            reads.append(step)
        return read(of, step, *more, **named)

    monkeypatch.setattr(ledger, "read", counted)
    monkeypatch.setattr(background, "findings", lambda run: [])  # the doctor reads what it needs
    data = RunData(run)
    data.listed()
    assert reads == []
    data.sample(20, 0)
    data.sample(20, 1)
    data.index(20)
    data.step(20)
    data.columns(20)
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
            found = page_traces(Tracer(one), t, words)
            assert bool(found) == bool(one.mask[t])
            assert all(trace["ok"] is not False for trace in found)
            assert {trace["words"] for trace in found} == set(words)
            assert all(set(entry) == {"zh", "en"} for entry in words.values())


def test_a_long_response_is_cut_and_says_its_length() -> None:
    long = step_of([sample(["好"] * 3_000, [0.5] * 3_000, [0.0] * 3_000, score=1.0)], 1)[0]
    page = page_sample(long)
    assert len(page["token_bytes"]) == 2_000
    assert {len(column) for column in page["columns"].values()} == {2_000}
    assert page["length"] == 3_000


def test_a_number_that_is_not_finite_becomes_null() -> None:
    one = sample(["2", EOS], [0.5, 0.6], [0.0, 0.0], score=1.0)
    one = replace(one, score=float("nan"), columns={**one.columns, "values": [float("inf"), 0.6]})
    page = json.loads(dumps(page_sample(one)))
    assert page["score"] is None
    assert page["columns"]["values"] == [None, 0.6]


def test_hostile_samples_are_small_strict_json() -> None:
    for one in hostile():
        assert len(dumps(page_sample(one))) < 60_000


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    assert json.loads(dumps({"prompt": "\udc80 半"})) == {"prompt": "\udc80 半"}


def test_index_tells_clipped_flipped_and_tools_apart(tmp_path: Path) -> None:
    rows = RunData(fake_run(tmp_path / "run")).index(40)
    assert [row["right"] for row in rows] == [True, False, True, True, False, True]
    assert [row["clip_fraction"] for row in rows] == pytest.approx(
        [1 / 7, 2 / 7, 0, 1 / 5, 1 / 8, 0], abs=1e-4
    )
    assert rows[5]["flipped"] == 1
    assert [row["tools"] for row in rows] == [0, 0, 0, 1, 0, 0]
    assert [row["written"] for row in rows] == [7, 7, 3, 5, 8, 7]
    assert [row["v0"] for row in rows] == pytest.approx([0.4, 0.4, 0.4, 0.4, 0.6, 0.6])
    assert rows[0]["parts"] == {"verdict": 1.0}
    assert rows[0]["prompt_key"] == rows[1]["prompt_key"] != rows[4]["prompt_key"]


def test_the_columns_of_a_step_are_those_of_its_samples(tmp_path: Path) -> None:
    data = RunData(fake_run(tmp_path / "run"))
    found = data.columns(40)
    one = data.sample(40, 3)
    start, end = found["offsets"][3:5]
    assert found["offsets"][-1] == sum(len(data.sample(40, i)) for i in range(found["count"]))

    def column(name: str) -> list[float]:
        packed = found["columns"][name]
        raw = base64.b64decode(packed["data"])
        return list(np.frombuffer(raw, packed["dtype"])[start:end])

    assert column("mask") == one.mask
    for name in ("values", "deltas", "advantages", "whitened", "returns", "kl"):
        assert column(name) == pytest.approx(one.columns[name])
    assert column("ratio") == pytest.approx(one.actor_updates[-1].ratio)
    assert column("clipped") == [1, 0, 0, 0, 0, 0, 0]
    assert "entropy" not in found["columns"]


def test_without_a_critic_there_is_no_v_and_no_delta(tmp_path: Path) -> None:
    settings = Settings.of(estimator=without_critic(), kl_coef=0.1)
    rows = [
        sample(["2", EOS], [0.0, 0.0], [0.1, 0.0], score=score, settings=settings)
        for score in (0.0, 1.0)
    ]
    plain = [replace(one, columns={**one.columns, **zeros()}) for one in rows]
    data = RunData(fake_run(tmp_path / "run", {1: plain}))
    assert "values" not in data.columns(1)["columns"]
    assert "deltas" not in data.columns(1)["columns"]
    assert data.index(1)[0]["v0"] is None
    assert data.step(1)["settings"]["critic"] is False
    assert data.step(1)["paths"] is None
    assert "values" not in page_sample(data.sample(1, 0))["columns"]


def without_critic() -> str:
    """An estimator that compares responses of a group."""
    return next(
        name
        for name, estimator in ESTIMATORS.built_in.items()
        if not estimator.needs.critic and estimator.needs.groups
    )


def zeros() -> dict[str, list[float]]:
    names = ("token_level_rewards", "deltas", "advantages", "returns", "whitened", "kl")
    return {name: [0.0, 0.0] for name in names}


CHAT = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def test_a_chat_prompt_comes_in_turns_and_its_row_has_the_users_words(tmp_path: Path) -> None:
    question = "How many eggs? " * 40
    rows = [sample(["2", EOS], [0.5, 0.6], [0.0, 0.0], score=1.0, prompt=CHAT.format(question))]
    data = RunData(fake_run(tmp_path / "run", {1: step_of(rows, 1)}))
    parts = page_sample(data.sample(1, 0))["prompt_parts"]
    assert [part["role"] for part in parts] == [
        "template",
        "system",
        "template",
        "user",
        "template",
    ]
    assert parts[3]["text"] == question  # not cut
    assert data.index(1)[0]["user"] == question[:160]
    assert data.search(1, "MANY EGGS") == [0]
    assert data.search(1, "spam") == []


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
    assert RunData(tmp_path).header()["ledger"] == []
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(TelescopeError, match=r"metrics\.jsonl cannot be read: Is a directory"):
        RunData(tmp_path).header()


def test_the_rows_of_a_prompt_are_all_responses_to_it(tmp_path: Path) -> None:
    others = [s for s in lesson(20) if s.prompt != lesson(20)[0].prompt]
    data = RunData(
        fake_run(tmp_path / "run", {10: lesson(10), 20: step_of(others, 20), 30: lesson(30)})
    )
    key = data.index(10)[0]["prompt_key"]
    rows = data.prompt_rows(key)
    assert [(row["step"], row["position"]) for row in rows] == [
        (step, position) for step in (10, 30) for position in range(4)
    ]
    assert rows[1] == {
        "step": 10, "kind": "step", "position": 1, "score": 0.0, "right": False, "v0": 0.4,
        "length": 7,
    }  # fmt: skip
    assert data.prompt_rows("nosuch") == []


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
        {trace["name"]: trace for trace in page_traces(Tracer(from_numbers(numbers)), t, words)}[
            "clip"
        ]["words"]
        for t in (0, 1)
    ]
    assert found[0] != found[1]
    assert "not below a floor" in words[found[1]]["en"]["formula_in_words"]
    assert "not below" not in words[found[0]]["en"]["formula_in_words"]


def test_the_large_fake_run_has_right_arithmetic_and_all_kinds_of_rows(tmp_path: Path) -> None:
    data = RunData(big_run(tmp_path / "big", steps=2, samples=64, tokens=40))
    rows = data.index(2)
    assert any(row["truncated"] for row in rows)
    assert any(row["tools"] for row in rows)
    assert any(row["right"] for row in rows)
    assert len({row["group"] for row in rows}) == 16
    for position in (0, next(row["position"] for row in rows if row["tools"])):
        one = data.sample(2, position)
        found = [trace for t in range(0, len(one), 7) for trace in traces(one, t)]
        assert found
        assert all(trace.ok is not False for trace in found)


def test_the_page_begins_with_the_token_that_explain_begins_with() -> None:
    for one in lesson():
        assert page_sample(one)["token"] == instructive(one)
