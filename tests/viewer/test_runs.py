"""Runs and their status: what a page lists and polls."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from telescope.config import Config, to_toml
from telescope.errors import TelescopeError
from telescope.ledger import reader as ledger
from telescope.viewer import series
from telescope.viewer.api import Api
from telescope.viewer.run_data import RunData
from telescope.viewer.runs import Runs
from telescope.viewer.series import MAX_POINTS, Metrics
from tests.viewer.fake import big_run, fake_run, lesson, step_of

LONG_AGO = 7_200


def with_config(run: Path, **changes: Any) -> Path:
    config = Config.builtin(**{"name": run.name, "dir": str(run.parent), "steps": 40, **changes})
    (run / "config.toml").write_text(to_toml(config), "utf-8")
    return run


def age(run: Path, seconds: float) -> None:
    """As if nothing had been written for so long."""
    then = time.time() - seconds
    for path in [run / "metrics.jsonl", *(run / "ledger").iterdir()]:
        os.utime(path, (then, then))


def append(run: Path, row: dict[str, Any]) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def whole_lines(run: Path) -> Path:
    """Without the line that a crash cut."""
    path = run / "metrics.jsonl"
    path.write_text("".join(line for line in path.open() if line.endswith("\n")))
    return run


# ---- which runs there are ----


def test_a_folder_lists_the_runs_directly_below_it(tmp_path: Path) -> None:
    for name in ("b", "a"):
        fake_run(tmp_path / name)
    fake_run(tmp_path / ".hidden")
    fake_run(tmp_path / "deep" / "run")
    (tmp_path / "notes.txt").touch()
    listing = Runs(tmp_path).listing()
    assert [run["id"] for run in listing["runs"]] == ["a", "b"]
    assert not listing["single"]


def test_a_run_whose_metrics_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    fake_run(tmp_path / "a")
    (tmp_path / "b" / "metrics.jsonl").mkdir(parents=True)
    a, b = Runs(tmp_path).listing()["runs"]
    assert a["error"] is None
    assert a["step"] == 40
    assert "cannot be read" in b["error"]


def test_one_run_is_a_list_of_one(tmp_path: Path) -> None:
    listing = Runs(fake_run(tmp_path / "only")).listing()
    assert listing["single"]
    assert [run["id"] for run in listing["runs"]] == ["only"]
    assert listing["runs"][0]["accuracy"]["before"] == (0, 0.22)


def test_a_new_run_is_found_and_a_deleted_one_is_reported_as_deleted(tmp_path: Path) -> None:
    fake_run(tmp_path / "a")
    api = Api(Runs(tmp_path))
    fake_run(tmp_path / "b")
    assert [run["id"] for run in api.answer("/api/runs")["runs"]] == ["a", "b"]
    assert api.answer("/api/runs/a/steps/40")["index"]
    shutil.rmtree(tmp_path / "a")
    assert api.answer("/api/runs")["runs"][0]["status"] == "deleted"
    header = api.answer("/api/runs/a")
    assert header["status"] == "deleted"
    assert header["ledger"] == []
    for path in ("/steps/40", "/metrics", "/steps/40/samples/0"):
        with pytest.raises(TelescopeError, match="the run a was deleted"):
            api.answer(f"/api/runs/a{path}")


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="neither has a folder in it"):
        Runs(tmp_path)
    with pytest.raises(TelescopeError, match="no run"):
        Runs(tmp_path / "nothing")


def test_runs_that_differ_only_in_seed_are_of_one_group(tmp_path: Path) -> None:
    with_config(fake_run(tmp_path / "s0"), seed=0)
    with_config(fake_run(tmp_path / "s1"), seed=1)
    with_config(fake_run(tmp_path / "hot"), seed=1, rollout={"temperature": 0.5})
    runs = {run["id"]: run for run in Runs(tmp_path).listing()["runs"]}
    assert runs["s0"]["group"] == runs["s1"]["group"] != runs["hot"]["group"]
    assert runs["s1"]["seed"] == 1


# ---- status ----


def test_a_run_is_finished_at_its_last_step(tmp_path: Path) -> None:
    run = with_config(fake_run(tmp_path / "run"))
    assert RunData(run).header()["status"] == "finished"


def test_a_run_that_holds_its_lock_is_running_then_silent(tmp_path: Path) -> None:
    run = with_config(fake_run(tmp_path / "run"), steps=100)
    data = RunData(run)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert data.header()["status"] == "running"
        age(run, LONG_AGO)
        header = data.header()
        assert header["status"] == "silent"
        assert header["silent_for"] == pytest.approx(LONG_AGO, abs=60)
    assert data.header()["status"] == "stopped"


def test_without_a_lock_file_the_time_of_the_last_write_decides(tmp_path: Path) -> None:
    run = with_config(fake_run(tmp_path / "run"), steps=100)
    data = RunData(run)
    assert data.header()["status"] == "running"
    age(run, 600)
    assert data.header()["status"] == "silent"
    age(run, LONG_AGO)
    assert data.header()["status"] == "stopped"


def test_a_run_that_has_written_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "run" / "ledger").mkdir(parents=True)
    header = RunData(tmp_path / "run").header()
    assert header["status"] == "empty"
    assert header["step"] == 0
    assert header["instructive"] is None


def test_the_time_left_follows_from_the_last_steps(tmp_path: Path) -> None:
    run = with_config(whole_lines(fake_run(tmp_path / "run")), steps=100)
    for step in range(41, 61):
        append(run, {"step": step, "timing/step": 2.0})
    header = RunData(run).header()
    assert header["seconds_per_step"] == 2.0
    assert header["eta_s"] == 80.0


def test_config_shows_what_differs_from_the_defaults(tmp_path: Path) -> None:
    run = with_config(fake_run(tmp_path / "run"), actor={"lr": 3e-6})
    rows = {row["key"]: row for row in RunData(run).header()["config"]}
    assert rows["actor.lr"]["value"] == 3e-6
    assert rows["actor.lr"]["changed"]
    assert rows["actor.lr"]["default"] == 1e-6
    assert not rows["rollout.temperature"]["changed"]
    assert rows["credit.lam"]["default"] == 0.95


def test_a_config_that_names_code_is_read_without_running_it(tmp_path: Path) -> None:
    run = with_config(fake_run(tmp_path / "run"))
    code = tmp_path / "own.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    recipe = run / "config.toml"
    text = recipe.read_text().replace('estimator = "gae"', f'estimator = "{code}:mine"')
    recipe.write_text(text)
    rows = {row["key"]: row for row in RunData(run).header()["config"]}
    assert rows["credit.estimator"]["value"] == f"{code}:mine"
    assert not (tmp_path / "ran").exists()


# ---- metrics ----


def test_metrics_that_grow_are_seen_and_only_the_new_part_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = whole_lines(fake_run(tmp_path / "run"))
    data = RunData(run)
    assert data.header()["step"] == 40
    parsed: list[bytes] = []
    read = series.read_line
    monkeypatch.setattr(series, "read_line", lambda line: parsed.append(line) or read(line))
    append(run, {"step": 41, "reward/kl": 0.5})
    api = Api(Runs(run))
    assert data.header()["step"] == 41
    assert len(parsed) == 1
    answer = api.answer("/api/runs/run/metrics", "names=reward/kl,no&after=40")
    assert answer["series"] == {"reward/kl": {"steps": [41], "values": [0.5]}}


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")  # its last line is cut
    metrics = Metrics(run / "metrics.jsonl").refresh()
    assert metrics.last_step == 40
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ard/kl": 0.25}\n')
    assert metrics.refresh().last_step == 41


def test_a_resumed_run_writes_its_metrics_anew(tmp_path: Path) -> None:
    run = whole_lines(fake_run(tmp_path / "run"))
    metrics = Metrics(run / "metrics.jsonl").refresh()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "new").write_text("".join(lines[:21]))
    (run / "new").replace(run / "metrics.jsonl")
    assert metrics.refresh().last_step == 20
    assert len(metrics.series["reward/kl"]) == 20


def test_a_number_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": NaN, "b": null, "c": "x", "d": true, "e": 2}\n[]\n\xff\n')
    assert list(Metrics(path).refresh().series) == ["e"]


def test_long_series_are_thinned_and_keep_ends_and_extremes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": i, "x": 1_000.0 if i == 7_777 else i % 10} for i in range(20_000)]
    rows[12_345]["x"] = -1_000.0
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    points = Metrics(path).refresh().to_json()["x"]
    assert len(points["steps"]) <= MAX_POINTS
    assert (points["steps"][0], points["steps"][-1]) == (0, 19_999)
    assert points["steps"] == sorted(points["steps"])
    assert {1_000.0, -1_000.0} <= set(points["values"])


# ---- what the page opens with ----


def test_the_page_opens_on_a_wrong_answer_of_an_early_step(tmp_path: Path) -> None:
    header = RunData(fake_run(tmp_path / "run")).header()
    step, position = header["instructive"]["step"], header["instructive"]["sample"]
    assert step == 10
    rows = RunData(tmp_path / "run").index(10)
    wrong = [row for row in rows if not row["right"]]
    assert rows[position] == max(wrong, key=lambda row: min(row["max_abs_a"], row["v0"]))


def test_the_page_does_not_open_on_an_untrained_critic(tmp_path: Path) -> None:
    """At step 1 all V are 0: a wrong answer surprises nobody."""
    at_first = [replace(s, columns={**s.columns, "values": [0.0] * len(s)}) for s in lesson(1)]
    header = RunData(fake_run(tmp_path / "run", {1: at_first, 2: lesson(2)})).header()
    assert header["instructive"]["step"] == 2


def test_the_page_opens_on_a_right_answer_if_none_is_wrong(tmp_path: Path) -> None:
    right = step_of([lesson()[0], lesson()[2]], 5)
    header = RunData(fake_run(tmp_path / "run", {5: right})).header()
    assert header["instructive"]["step"] == 5


def test_colour_scales_stay_when_a_step_is_added(tmp_path: Path) -> None:
    steps = {step: lesson(step) for step in range(1, 5)}
    data = RunData(fake_run(tmp_path / "run", steps))
    before = data.header()["scales"]
    assert before["whitened"] > 0.5
    assert {"values", "ratio", "kl", "deltas"} <= set(before)
    fake_run(tmp_path / "run", {5: step_of([lesson(5)[1]], 5)})
    assert data.header()["scales"] == before


def test_a_prompt_is_followed_by_reading_four_columns_of_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = RunData(big_run(tmp_path / "run", steps=6, samples=8, tokens=10))
    key = data.index(1)[0]["prompt_key"]
    reads: list[list[str]] = []
    read = ledger.read
    monkeypatch.setattr(
        ledger,
        "read",
        lambda run, step, columns, kind: reads.append(columns) or read(run, step, columns),
    )
    first = data.prompt_rows(key)
    assert data.prompt_rows(key) == first
    assert len(reads) == 6
    assert all(len(columns) == 4 for columns in reads)
    assert [row["step"] for row in first] == [1] * 4


# ---- damage ----


def test_a_damaged_step_costs_only_itself_and_is_tried_again(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    api = Api(Runs(run))
    path = run / "ledger" / "step_000010.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(TelescopeError, match="cannot be read"):
        api.answer("/api/runs/run/steps/10")
    header = api.answer("/api/runs/run")
    assert header["instructive"]["step"] == 20
    assert header["scales"]["whitened"] > 0
    key = api.answer("/api/runs/run/steps/20")["index"][0]["prompt_key"]
    assert len(api.answer(f"/api/runs/run/prompts/{key}")["rows"]) == 12
    path.write_bytes(whole)
    assert api.answer("/api/runs/run/steps/10")["index"]


def test_the_list_has_the_settings_in_which_runs_differ(tmp_path: Path) -> None:
    with_config(fake_run(tmp_path / "a"), seed=0)
    with_config(fake_run(tmp_path / "b"), seed=1, actor={"lr": 7e-5})
    fake_run(tmp_path / "without-config")
    a, b, without = (run["settings"] for run in Runs(tmp_path).listing()["runs"])
    assert list(a) == list(b) == ["seed", "actor.lr"]  # not name and dir
    assert (b["seed"], b["actor.lr"]) == (1, 7e-5)
    assert without == {}
