"""telescope sweep: which runs it makes, and that it goes on where it stopped."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from telescope.commands.sweep import Job, make_jobs, run_here, split_values
from telescope.config import Config
from telescope.errors import TelescopeError
from tests import ROOT
from tests.commands.calls import Capture, refusal
from tests.tiny import tiny_config


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-6,3e-6", ["1e-6", "3e-6"]),
        ("7", ["7"]),
        ('["q","v"],["q"]', ['["q","v"]', '["q"]']),
        ("{a = 1, b = 2}", ["{a = 1, b = 2}"]),
        ('"a,b",c', ["a,b", "c"]),
    ],
)
def test_commas_separate_values_outside_brackets_and_quotes(text: str, values: list[str]):
    assert split_values("x", text) == values


def test_the_sweep_in_the_docs_makes_six_runs():
    page = (ROOT / "docs" / "many-runs.md").read_text("utf-8")
    (command,) = re.findall(r"^telescope sweep (.*?) +#", page, re.MULTILINE)
    recipe, *words = shlex.split(command)
    Path(recipe).write_text('name = "sums"\n')
    settings = [
        (key.removeprefix("--"), value) for key, value in zip(words[::2], words[1::2], strict=True)
    ]
    jobs = make_jobs(recipe, settings)
    assert len(jobs) == 6
    assert str(jobs[0].config.run_dir) == "runs/sums-sweep/actor.lr=1e-6_seed=0"
    assert [(job.config.actor.lr, job.config.seed) for job in jobs][2:4] == [(1e-6, 2), (3e-6, 0)]


def test_a_list_reaches_the_run_as_one_value():
    jobs = make_jobs(None, [("log.trackers", '["tensorboard","wandb"],["wandb"]')])
    assert [job.config.log.trackers for job in jobs] == [["tensorboard", "wandb"], ["wandb"]]
    assert jobs[0].config.log.group == "arithmetic-sweep"


def test_a_sweep_sets_no_group_where_no_tracker_has_groups():
    jobs = make_jobs(None, [("seed", "0,1"), ("log.trackers", "tensorboard")])
    assert {job.config.log.group for job in jobs} == {None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "1"], "nothing to sweep"),
        (["--name", "a,b"], "name and dir are the sweep's own"),
        (["--seed", "1,,2"], "--seed 1,,2: a value is empty"),
        (["--seed", "1,1"], "two runs of the sweep would be called seed=1"),
        (["--seed", "0,1", "--actor.lr", "1e-6,-1"], "actor.lr = -1"),
    ],
)
def test_mistakes_are_refused_before_the_first_run(
    arguments: list[str], said: str, capsys: Capture
):
    assert said in refusal(capsys, "sweep", *arguments)
    assert not Path("runs").exists()


class Shell(Job):
    """A job that runs a line of Python in place of a training."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", *self.arguments]


def test_a_run_that_fails_does_not_end_the_sweep(capfd: pytest.CaptureFixture[str]):
    lines = ["raise SystemExit(2)", "print('ran')"]
    jobs = [Shell(Config(name=f"job{i}"), [line]) for i, line in enumerate(lines)]
    assert run_here(jobs) == jobs[:1]
    assert "ran" in capfd.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        run_here([Shell(Config(), ["raise SystemExit(130)"]), *jobs])


@pytest.mark.slow
def test_a_sweep_skips_what_is_finished_and_compares_all_runs(
    tmp_path: Path, tiny_model: Path, capfd: pytest.CaptureFixture[str]
):
    from telescope import Trainer
    from telescope.commands import main
    from telescope.config import to_toml

    config = tiny_config(tmp_path, tiny_model, ("name", "tiny"), ("ledger.samples", "off"))
    Path("tiny.toml").write_text(to_toml(config))
    settings = [("seed", "0,1")]
    first, second = make_jobs("tiny.toml", settings)
    Trainer(first.config).fit()
    assert (first.is_finished, second.is_finished) == (True, False)
    main(["sweep", "tiny.toml", "--seed", "0,1"])
    shown = capfd.readouterr().out
    assert f"2 runs in {tmp_path / 'tiny-sweep'}, 1 of them finished" in shown
    assert "run 1 of 1: seed=1" in shown
    assert "2 runs, seeds 0, 1" in shown
    assert second.is_finished
    assert not make_jobs("tiny.toml", [*settings, ("steps", "3")])[0].is_finished
    with pytest.raises(TelescopeError, match=r"other settings \(actor.lr: 0.001 → 0.1\)"):
        _ = make_jobs("tiny.toml", [*settings, ("actor.lr", "0.1")])[0].is_finished
