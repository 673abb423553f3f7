"""metrics.jsonl, and the trackers beside it: what they get, and what a resumed run sends."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from telescope import Trainer
from telescope.config import Config, load_config, smoke
from telescope.errors import TelescopeError
from telescope.run.metrics import MetricsLog, read_metrics


class FakeService:
    """Stands for the module wandb or trackio: it keeps what it was told."""

    def __init__(self, refuses: str | None = None) -> None:
        self.refuses = refuses
        self.started: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.finished = 0

    def init(self, **given: Any) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.started.append(given)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.logged.append((step, metrics))

    def Table(self, columns: list[str], data: list[list[Any]]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(columns=columns, data=data)

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def config_in(run: Path, **log: Any) -> Config:
    return Config(dir=str(run.parent), name="run", log=log)


def write(config: Config, after_step: int, *steps: int) -> None:
    log = MetricsLog(config, after_step=after_step)
    for step in steps:
        log.write(step, {"reward/kl": step / 10})
    log.close()


def steps_in(path: Path) -> list[int]:
    return [row["step"] for row in read_metrics(path)]


def test_numbers_that_json_cannot_hold_become_null(run: Path):
    log = MetricsLog(config_in(run), after_step=-1)
    log.write(1, {"a": math.nan, "b": math.inf, "c": 0.1})
    log.close()
    (line,) = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    row = json.loads(line)
    assert row.pop("crc32") > 0
    assert row == {"step": 1, "a": None, "b": None, "c": 0.1}


def test_rows_after_the_checkpoint_move_to_the_discarded_file(run: Path):
    config = config_in(run)
    write(config, -1, 0, 1, 2, 3)
    write(config, 1, 2, 3)
    assert steps_in(run / "metrics.jsonl") == [0, 1, 2, 3]
    assert steps_in(run / "metrics.discarded.jsonl") == [2, 3]
    write(config, 2, 3)
    assert steps_in(run / "metrics.discarded.jsonl") == [2, 3, 3]


def test_a_missing_file_has_no_rows(tmp_path: Path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


# ---- trackers


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_remote_tracker_gets_project_group_config_and_every_step(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
):
    service = FakeService()
    monkeypatch.setitem(sys.modules, name, service)
    config = config_in(run, trackers=[name], project="sums", group="lr", tags=["a", "b"])
    write(config, -1, 1, 2)
    (given,) = service.started
    assert (given["project"], given["group"], given["name"]) == ("sums", "lr", "run")
    assert given["config"] == config.model_dump()
    assert given.get("tags") == (["a", "b"] if name == "wandb" else None)
    assert service.logged == [(1, {"reward/kl": 0.1}), (2, {"reward/kl": 0.2})]
    assert service.finished == 1


def test_a_resumed_run_goes_on_with_its_wandb_run_and_repeats_no_step(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    service = FakeService()
    monkeypatch.setitem(sys.modules, "wandb", service)
    config = config_in(run, trackers=["wandb"])
    write(config, -1, 1, 2, 3)
    write(config, 1, 2, 3, 4)  # the last checkpoint was that of step 1
    first, second = service.started
    assert first["id"] == second["id"]
    assert (first["resume"], second["resume"]) == ("never", "allow")
    assert [step for step, _ in service.logged] == [1, 2, 3, 4]
    write(config, -1, 1)  # a new start in the same folder is another run there
    assert service.started[2]["id"] != first["id"]


def test_a_tracker_without_login_is_one_line_with_a_remedy(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "wandb", FakeService(refuses="No API key configured.\nmore"))
    with pytest.raises(TelescopeError) as refused:
        MetricsLog(config_in(run, trackers=["wandb"]), after_step=-1)
    assert str(refused.value).startswith(
        "log.trackers: wandb cannot start (No API key configured): run `wandb login`"
    )


def test_tensorboard_shows_every_step_once_after_a_resume(run: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = config_in(run, trackers=["tensorboard"])
    write(config, -1, 1, 2, 3)
    write(config, 1, 2, 3)
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("reward/kl")] == [1, 2, 3]


def test_a_smoke_run_keeps_the_trackers():
    config = load_config(None, [("log.trackers", "tensorboard"), ("log.project", "mine")])
    assert smoke(config).log.trackers == ["tensorboard"]
    assert smoke(config).log.project == "mine"


def test_trackers_get_a_table_of_samples(make_config, monkeypatch: pytest.MonkeyPatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    service = FakeService()
    monkeypatch.setitem(sys.modules, "wandb", service)
    config = make_config(
        ("log.trackers", "wandb,tensorboard"), ("log.samples", "3"), ("log.samples_every", "2")
    )
    Trainer(config).fit()
    tables = [(step, row["samples"]) for step, row in service.logged if "samples" in row]
    ((step, table),) = tables
    assert step == 2
    assert table.columns == ["prompt", "response", "score", "verdict", "sum"]
    assert len(table.data) == 3
    events = accumulator.EventAccumulator(str(config.run_dir / "tensorboard"))
    events.Reload()
    ((step, text),) = [
        (event.step, event.tensor_proto.string_val[0].decode())
        for event in events.Tensors("samples/text_summary")
    ]
    assert step == 2
    assert text.splitlines()[0] == "| prompt | response | score | verdict | sum |"
    assert len(text.splitlines()) == 5
    assert table.data[0][0] in text
