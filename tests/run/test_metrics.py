"""metrics.jsonl."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from telescope.config import Config
from telescope.run.metrics import MetricsLog, read_metrics


def config_in(folder: Path) -> Config:
    return Config(dir=str(folder), name="run")


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
    row = json.loads(line)
    assert row.pop("crc32") > 0
    assert row == {"step": 1, "a": None, "b": None, "c": 0.1}


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
