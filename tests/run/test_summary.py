"""The closing lines of a run: commands that this user can copy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from telescope.config import load_config
from telescope.run.summary import summarise


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; `telescope` is not on the PATH."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def closing_lines(
    *settings: tuple[str, str], report: Path | None = Path("runs/run/report.html")
) -> str:
    return summarise(load_config(None, settings), 1, [], report)


def test_the_language_is_left_to_the_locale(here: Path):
    assert "explain runs/run   the same in the terminal" in closing_lines()
    assert "--lang" not in closing_lines()


@pytest.mark.parametrize(
    ("program", "shown"),
    [("venv/bin", "venv/bin/telescope"), ("../elsewhere/bin", "/elsewhere/bin/telescope")],
)
def test_a_program_elsewhere_has_its_whole_path(
    here: Path, program: str, shown: str, monkeypatch: pytest.MonkeyPatch
):
    python = (here / program).resolve() / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    assert f"{shown} view runs/run" in closing_lines()
    assert ".." not in closing_lines()


def test_without_a_ledger_nothing_is_said_about_explaining(here: Path):
    assert "explain" not in closing_lines(report=None)


def test_a_name_with_a_space_is_quoted(here: Path):
    assert "view 'runs/my run'   " in closing_lines(("name", "my run"))


def test_a_run_without_a_critic_exports_none(here: Path):
    (here / "runs" / "run" / "checkpoints").mkdir(parents=True)
    assert "Hugging Face folders of actor and critic" in closing_lines()
    grpo = (("credit.estimator", "grpo"), ("rollout.n", "2"))
    assert "Hugging Face folders of the actor" in closing_lines(*grpo)
