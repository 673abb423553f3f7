"""Files of a run folder that are no files, or are nested without end: refused in one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from telescope.audit import file as audit_file
from telescope.config import Config, checked_toml, load_config
from telescope.doctor import examine
from telescope.errors import TelescopeError
from telescope.ledger import reader
from telescope.ledger.lines import is_locked
from telescope.models.shard_index import read_index
from telescope.run.checkpoint import explained, load
from telescope.run.manifest import read_manifest
from telescope.run.metrics import MetricsLog, read_metrics
from telescope.viewer.runs import Runs
from telescope.viewer.series import Metrics

NESTED = "[" * 5000 + "]" * 5000
NO_FILE = "it is a pipe, a socket or a device, not a file"


@pytest.fixture(autouse=True)
def not_for_ever() -> Iterator[None]:
    """A pipe that is opened waits for its writer."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("this would have waited for ever")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Nothing:
    """A role that has nothing to load."""

    def load(self, folder: Path) -> None:
        pass


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def device(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/null")
    return path


def config_of(run: Path) -> Config:
    return load_config(None, [("dir", str(run.parent)), ("name", run.name)])


@pytest.fixture(params=[pipe, device])
def make(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    made: Callable[[Path], Path] = request.param
    return made


def test_a_pipe_or_device_in_place_of_a_file_is_refused(make: Any, tmp_path: Path):
    config = make(tmp_path / "config.toml")
    metrics = make(tmp_path / "metrics.jsonl")
    make(reader.path_of(tmp_path, 1))
    for read in (
        lambda: checked_toml(config),
        lambda: Metrics(metrics).refresh(),
        lambda: examine(tmp_path).findings(),
        lambda: reader.read(tmp_path, 1),
        lambda: MetricsLog(config_of(tmp_path), after_step=0),
    ):
        with pytest.raises((TelescopeError, OSError), match=NO_FILE):
            read()
    with pytest.raises(OSError, match=NO_FILE):
        read_metrics(metrics)
    assert Runs(tmp_path).listing()["runs"][0]["error"].count(NO_FILE) == 1
    make(audit_file.path_of(tmp_path, 1))
    assert audit_file.load(tmp_path, 1) is None
    assert is_locked(make(tmp_path / ".lock")) is None


def test_a_pipe_or_device_in_a_checkpoint_is_refused(make: Any, tmp_path: Path):
    step = tmp_path / "step_000001"
    make(step / "shards" / ".metadata")
    make(step / "state.pt")
    with explained(step), pytest.raises(OSError, match=NO_FILE):
        read_index(step / "shards")
    with pytest.raises(TelescopeError, match="is damaged"):
        load(step, actor=Nothing(), critic=Nothing())


def test_rows_are_not_moved_into_a_pipe(tmp_path: Path):
    config = config_of(tmp_path / "run")
    pipe(config.run_dir / "metrics.discarded.jsonl")
    (config.run_dir / "metrics.jsonl").write_text("damaged\n")
    with pytest.raises(TelescopeError, match="cannot write"):
        MetricsLog(config, after_step=0)
    assert (config.run_dir / "metrics.jsonl").read_text() == "damaged\n"


def test_what_is_nested_without_end_is_refused_in_one_line(tmp_path: Path):
    config = tmp_path / "config.toml"
    config.write_text(f"x = {NESTED}")
    with pytest.raises(TelescopeError, match="nested too deeply"):
        checked_toml(config)
    step = tmp_path / "step_000001"
    step.mkdir()
    (step / "checkpoint.json").write_text(NESTED)
    with pytest.raises(TelescopeError, match="cannot be read"):
        read_manifest(step)


def test_a_state_of_more_than_numbers_does_not_advise_to_read_it_anyway(tmp_path: Path):
    step = tmp_path / "step_000001"
    step.mkdir()
    torch.save({"rng": Nothing()}, step / "state.pt")
    with pytest.raises(TelescopeError, match=r"state\.pt holds more than numbers") as error:
        load(step, actor=Nothing(), critic=Nothing())
    assert "weights_only" not in str(error.value)
