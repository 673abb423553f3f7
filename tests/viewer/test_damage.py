"""The page names damaged files, in both languages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from telescope.ledger.lines import write_line
from telescope.ledger.reader import path_of
from telescope.run.folder import RunLock
from telescope.viewer.report import write_report
from telescope.viewer.runs import Runs
from telescope.viewer.typed_run import write_step
from tests.viewer.fake import data_of_report, fake_run, lesson


def cut_run(tmp_path: Path) -> Path:
    """A run of three steps; the file of the second has lost its end."""
    run = fake_run(tmp_path / "run", {step: lesson(step) for step in (10, 20, 30)})
    path = path_of(run, 20)
    path.write_bytes(path.read_bytes()[:-100])
    (run / "metrics.jsonl").write_text(write_line({"step": 30}), "utf-8")
    return run


def test_the_header_names_damaged_files_without_the_path_of_the_run(tmp_path: Path):
    run = cut_run(tmp_path)
    (run / "metrics.jsonl").write_text(write_line({"step": 1}) + '{"step": 2', "utf-8")
    data = Runs(run).first()
    waited = data.damage(wait=True)
    assert [line["en"] for line in waited] == [
        "metrics.jsonl: 1 damaged lines are left out",
        "damaged files of ledger are left out: step_000020.parquet",
    ]
    assert [line["zh"] for line in waited] == [
        "metrics.jsonl：有 1 行坏了，没有用到",
        "ledger 里有文件坏了，没有用到：step_000020.parquet",
    ]
    assert data.header()["damage"] == waited


def test_a_line_that_is_being_written_is_not_damage(tmp_path: Path):
    run = cut_run(tmp_path)
    (run / "metrics.jsonl").write_text(write_line({"step": 1}) + '{"step": 2', "utf-8")
    lock = RunLock(run)
    lock.take()
    (line,) = Runs(run).first().damage(wait=True)
    assert line["en"] == "damaged files of ledger are left out: step_000020.parquet"
    lock.release()


def test_a_file_that_is_mended_or_damaged_later_is_noticed(tmp_path: Path):
    run = cut_run(tmp_path)
    data = Runs(run).first()
    assert len(data.damage(wait=True)) == 1
    write_step(run, 20, lesson(20))
    assert data.damage(wait=True) == []
    path_of(run, 30).write_bytes(b"")
    (line,) = data.damage(wait=True)
    assert line["en"].endswith(": step_000030.parquet")


def test_a_report_names_damaged_files(tmp_path: Path):
    run = cut_run(tmp_path)
    html = write_report(run, tmp_path / "report.html").read_text("utf-8")
    header = data_of_report(html)["answers"]["api/runs/run"]
    assert header["damage"][0]["en"].endswith(": step_000020.parquet")


@pytest.mark.slow
def test_view_names_damaged_files_in_the_terminal(tmp_path: Path):
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "telescope", "view", str(cut_run(tmp_path))]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as view:
        try:
            assert view.stderr is not None
            said = view.stderr.readline()
        finally:
            os.kill(view.pid, signal.SIGTERM)
    assert said.startswith("telescope: damaged files of ")
    assert said.endswith(": step_000020.parquet\n")
