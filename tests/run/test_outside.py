"""What comes from outside a run: a reader that leaves, signals, pruning, damaged lines, keys."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import torch

from telescope import commands
from telescope.config import load_config
from telescope.errors import TelescopeError
from telescope.ledger import reader
from telescope.models.load import load_policy
from telescope.run import checkpoint, export, progress
from telescope.run.folder import discard_ledger
from telescope.run.manifest import damaged
from telescope.run.metrics import MetricsLog, read_metrics
from telescope.run.progress import Progress, Stop, graceful_stop
from telescope.run.summary import warnings
from telescope.run.trackers import _without_keys
from telescope.viewer import report
from telescope.viewer.server import _listen, serve
from tests.viewer.fake import fake_run


def test_a_reader_that_leaves_does_not_end_training(monkeypatch: pytest.MonkeyPatch):
    """As `head` in `telescope train | head -3`."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        bar = Progress(start=0, steps=3)
        for step in (1, 2, 3):
            bar.update(step, {"reward/score_mean": 0.5})
            bar.say("a note")
        pipe.flush()  # goes nowhere now


def test_a_reward_that_closes_stdout_does_not_end_training(monkeypatch: pytest.MonkeyPatch):
    with open(os.devnull, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        bar = Progress(start=0, steps=2)
    bar.say("a note")
    bar.update(1, {})
    assert not sys.stdout.closed
    sys.stdout.close()


def test_a_closed_terminal_asks_to_stop_and_save():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with graceful_stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested == "SIGHUP"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_under_nohup_a_closed_terminal_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with graceful_stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_step_that_hangs_after_a_signal_ends_without_a_second_one(
    monkeypatch: pytest.MonkeyPatch,
):
    """As a reward that waits for a server for ever."""
    monkeypatch.setattr(progress, "SHORTEST_PATIENCE", 0.1)
    with graceful_stop() as stop:
        stop.after_step()  # one step has ended, so the next should take as long
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(60)


def test_a_step_that_ends_after_a_signal_is_not_interrupted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "SHORTEST_PATIENCE", 0.1)
    with graceful_stop() as stop:
        stop.after_step()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.after_step() == "SIGTERM"
        time.sleep(0.2)  # saving may take its time


def test_before_the_first_step_has_ended_a_signal_waits_long():
    assert Stop().patience() == 600.0


def test_an_empty_token_of_the_page_is_refused(tmp_path: Path):
    for token in ("", " "):
        with pytest.raises(TelescopeError, match="--token is empty"):
            serve(tmp_path, token=token)


def test_the_page_listens_before_its_address_is_printed():
    with _listen("127.0.0.1", 0) as listener, socket.socket() as visitor:
        visitor.settimeout(5)
        visitor.connect(listener.getsockname())  # refused before `listen`


# ---- checkpoints ----


def test_a_checkpoint_that_was_pruned_meanwhile_is_not_called_damaged(tmp_path: Path):
    newer = tmp_path / "step_000040"
    newer.mkdir()
    (newer / "checkpoint.json").write_text("{}")
    said = str(damaged(tmp_path / "step_000020", "state.pt is missing"))
    assert "was removed while it was read, because the run has written step_000040" in said
    assert "damaged" not in said
    assert "is damaged: x" in str(damaged(newer, "x"))


def test_nobody_sees_a_part_of_a_pruned_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = tmp_path / "step_000020"
    old.mkdir()
    (old / "checkpoint.json").write_text("{}")
    (old / "state.pt").write_text("")
    done = []
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **_: done.append(path))
    monkeypatch.setattr(checkpoint, "sync", done.append)
    checkpoint._remove(old)
    assert not old.exists()
    synced, kept = done  # the rename is on disk before anything is removed
    assert synced == tmp_path
    assert kept.name.startswith(".removing-step_000020")
    monkeypatch.undo()
    checkpoint.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_once_its_name_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else a power cut could bring back the old name, with a part of the checkpoint."""
    left = tmp_path / ".removing-step_000020-7"
    left.mkdir()
    done = []
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **_: done.append(path))
    monkeypatch.setattr(checkpoint, "sync", done.append)
    checkpoint.remove_leftovers(tmp_path)
    assert done == [tmp_path, left]


def test_a_full_disk_is_reported_in_plain_words(tmp_path: Path):
    torch_says = RuntimeError("[enforce fail at inline_container.cc:858] . unexpected pos 64 vs 0")
    said = str(checkpoint._cannot_save(tmp_path / "step_000001", torch_says))
    assert "a file could not be written whole, so the disk is full or fails" in said
    assert "enforce" not in said


# ---- the log and the ledger ----


def test_damaged_lines_of_the_log_are_counted_and_kept(tmp_path: Path):
    config = load_config(None, [("dir", str(tmp_path)), ("name", "run")])
    config.run_dir.mkdir()
    lines = [b'{"step": 0}', b'{"step": 1', b"\xff\xfe", b'{"step": 2}', b'{"step": 3}']
    (config.run_dir / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    log = MetricsLog(config, after_step=2)
    log.close()
    assert log.damaged == [2, 3]
    assert [row["step"] for row in read_metrics(log.path)] == [0, 2]
    discarded = (config.run_dir / "metrics.discarded.jsonl").read_bytes().splitlines()
    assert discarded == [lines[1], lines[2], lines[4]]


def test_discarded_rows_are_not_written_through_a_link(tmp_path: Path):
    config = load_config(None, [("dir", str(tmp_path)), ("name", "run")])
    config.run_dir.mkdir()
    (config.run_dir / "metrics.jsonl").write_text('{"step": 5}\n')
    target = tmp_path / "precious"
    target.write_text("")
    (config.run_dir / "metrics.discarded.jsonl").symlink_to(target)
    with pytest.raises(TelescopeError, match=r"cannot write .*metrics\.jsonl"):
        MetricsLog(config, after_step=0)
    assert target.read_text() == ""


def test_ledger_files_after_the_step_are_moved_away(tmp_path: Path):
    (tmp_path / "ledger").mkdir()
    for step in (1, 2, 3):
        reader.path_of(tmp_path, step).write_text(str(step))
    discard_ledger(tmp_path, after_step=1)
    assert reader.steps(tmp_path) == [1]
    assert (tmp_path / "ledger" / "discarded" / "step_000003.parquet").read_text() == "3"
    discard_ledger(tmp_path, after_step=1)


# ---- what killed processes leave behind ----


def test_what_a_killed_export_left_is_removed(tmp_path: Path):
    gone = tmp_path / ".exporting-4194305"  # larger than any process number
    ours = tmp_path / f".exporting-{os.getpid()}"
    gone.mkdir()
    ours.mkdir()
    export._remove_leftovers(tmp_path)
    assert not gone.exists()
    assert ours.exists()


def test_what_a_killed_report_left_is_removed(tmp_path: Path):
    left, ours = tmp_path / ".report.html.abc", tmp_path / ".report.html.def"
    left.write_text("half")
    with ours.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        report._remove_leftovers(tmp_path / "report.html")
        assert not left.exists()
        assert ours.exists()


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_a_report_that_was_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
):
    run = fake_run(tmp_path / "run")

    def stop(*_: object) -> None:
        raise fault

    monkeypatch.setattr(report.os, "replace", stop)
    with pytest.raises((KeyboardInterrupt, TelescopeError)):
        report.write_report(run, tmp_path / "out" / "report.html")
    assert list((tmp_path / "out").iterdir()) == []


# ---- models and keys ----


def test_a_model_with_weights_that_are_not_finite_is_refused(model_copy: Path):
    from safetensors.torch import load_file, save_file

    from telescope.config import ModelConfig

    file = model_copy / "model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[0]
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(TelescopeError, match=r"has weights that are not finite \(in "):
        load_policy(ModelConfig(path=str(model_copy)), torch.device("cpu"))


def test_a_model_of_ones_own_without_data_is_told_what_it_trains_on():
    (said,) = warnings(load_config(None, [("model.path", "org/name")]), 0, None, [])
    assert "the prompts are the built-in ones, such as 请问1+1=2？" in said
    for given in ([], [("model.path", "org/name"), ("data.files", "a.jsonl")]):
        assert warnings(load_config(None, given), 0, None, []) == []


def test_a_key_in_an_address_is_pointed_out_and_not_sent_to_trackers():
    spec = "https://host/score?key=secret"
    config = load_config(None, [("reward.functions", spec)])
    (said,) = warnings(config, 0, None, [])
    assert "write ${NAME} in its place" in said
    assert _without_keys(config)["reward"]["functions"] == ["https://host/score"]
    safe = load_config(None, [("reward.functions", "https://host/score?key=${KEY}")])
    assert warnings(safe, 0, None, []) == []


# ---- errors of the command line ----


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "secret.toml"), "secret.toml: Permission denied"),
        (MemoryError(), "out of memory: lower"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 5 bytes"), "out of memory"),
    ],
)
def test_unreadable_files_and_memory_are_reported_in_one_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
):
    def fails(arguments: list[str]) -> None:
        raise error

    printed = io.StringIO()
    monkeypatch.setattr(commands, "_dispatch", fails)
    monkeypatch.setattr(sys, "stderr", printed)
    with pytest.raises(SystemExit) as end:
        commands.main(["train"])
    assert end.value.code == 2
    assert printed.getvalue().count("\n") == 1
    assert said in printed.getvalue()
