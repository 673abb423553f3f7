"""metrics.jsonl and the trackers beside it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from telescope.config import Config
from telescope.run.metrics import MetricsLog, read_metrics


def config_in(folder: Path, *trackers: str) -> Config:
    return Config(dir=str(folder), name="run", log={"trackers": trackers})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def write(config: Config, after_step: int, *steps: int) -> None:
    log = MetricsLog(config, after_step=after_step)
    for step in steps:
        log.write(step, {"reward/kl": step / 10})
    log.close()


def steps_in(path: Path) -> list[int]:
    return [row["step"] for row in read_metrics(path)]


def test_numbers_that_json_cannot_hold_become_null(run: Path):
    log = MetricsLog(config_in(run.parent), after_step=-1)
    log.write(1, {"a": math.nan, "b": math.inf, "c": 0.1})
    log.close()
    (line,) = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line) == {"step": 1, "a": None, "b": None, "c": 0.1}


def test_rows_after_the_checkpoint_move_to_the_discarded_file(run: Path):
    config = config_in(run.parent)
    write(config, -1, 0, 1, 2, 3)
    write(config, 1, 2, 3)
    assert steps_in(run / "metrics.jsonl") == [0, 1, 2, 3]
    assert steps_in(run / "metrics.discarded.jsonl") == [2, 3]
    write(config, 2, 3)
    assert steps_in(run / "metrics.discarded.jsonl") == [2, 3, 3]


def test_a_missing_file_has_no_rows(tmp_path: Path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_remote_tracker_gets_the_config_and_every_step(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[tuple[str, Any]] = []
    fake = SimpleNamespace(
        init=lambda **given: calls.append(("init", given)),
        log=lambda metrics, step: calls.append(("log", (step, metrics))),
        finish=lambda: calls.append(("finish", None)),
    )
    monkeypatch.setitem(sys.modules, name, fake)
    config = config_in(run.parent, name)
    write(config, -1, 1, 2)
    settings = {"project": "telescope", "name": "run", "config": config.model_dump()}
    assert calls == [
        ("init", settings),
        ("log", (1, {"reward/kl": 0.1})),
        ("log", (2, {"reward/kl": 0.2})),
        ("finish", None),
    ]


def test_tensorboard_writes_its_files(run: Path):
    pytest.importorskip("tensorboard")
    write(config_in(run.parent, "tensorboard"), -1, 1)
    (file,) = (run / "tensorboard").iterdir()
    assert b"reward/kl" in file.read_bytes()
