"""telescope sweep --ray: runs at once, each with a log of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from telescope.commands.sweep import Job, run_on_ray
from telescope.config import Config
from telescope.errors import TelescopeError


class Shell(Job):
    """A job that runs a line of Python in place of a training."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", *self.arguments]


@pytest.mark.usefixtures("cluster")
def test_runs_on_ray_write_a_log_each_and_failures_are_returned(tmp_path: Path) -> None:
    folder = str(tmp_path / "sweep")
    lines = ["print('one')", "raise SystemExit(2)"]
    jobs = [Shell(Config(dir=folder, name=f"job{i}"), [line]) for i, line in enumerate(lines)]
    assert run_on_ray(jobs) == jobs[1:]
    assert (tmp_path / "sweep" / "job0.log").read_text() == "one\n"


def test_a_recipe_that_uses_ray_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="gives the cluster to one run"):
        run_on_ray([Job(Config(dir=str(tmp_path), backend="ray"), [])])
