"""Whatever is recorded, wherever: nothing reaches the host, nothing blocks it, disk is bounded."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import telescope
from telescope.ledger.reader import samples, steps
from telescope.peers import Recorder
from telescope.peers.background import Background
from telescope.peers.snapshot import snapshot
from tests.peers.batches import SETTINGS, batch

COLUMNS = ("values", "whitened", "returns", "old_log_probs", "token_level_rewards")


class Refuses:
    """An object that fails at whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __str__(self) -> str:
        raise RuntimeError("no text")


class RefusesToBePrintedError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises(*_: Any, **__: Any) -> Any:
    raise RefusesToBePrintedError


ODD: dict[str, Callable[[torch.Tensor], Any]] = {
    "absent": lambda x: None,
    "one row less": lambda x: x[1:],
    "one row more": lambda x: torch.cat([x, x[:1]]),
    "one token less": lambda x: x[:, 1:],
    "no tokens": lambda x: x[:, :0],
    "no rows": lambda x: x[:0],
    "one dimension": lambda x: x[0],
    "three dimensions": lambda x: x[..., None],
    "a number": lambda x: 3.5,
    "a text": lambda x: "values",
    "a dict": lambda x: {"a": 1},
    "a set": lambda x: {1, 2},
    "an object that refuses": lambda x: Refuses(),
    "all NaN": lambda x: torch.full_like(x, float("nan"), dtype=torch.float),
    "infinite": lambda x: torch.full_like(x, float("inf"), dtype=torch.float),
    "huge": lambda x: torch.full_like(x, 3e38, dtype=torch.float),
    "float16": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "float64": lambda x: x.double(),
    "complex": lambda x: x.to(torch.complex64),
    "bool": lambda x: x.bool(),
    "uint8": lambda x: x.to(torch.uint8),
    "sparse": lambda x: x.to_sparse(),
    "meta device": lambda x: torch.empty_like(x, device="meta"),
    "nested": lambda x: torch.nested.nested_tensor(list(x.float()), layout=torch.jagged),
    "needs a gradient": lambda x: x.float().requires_grad_() * 2,
    "inference tensor": lambda x: _inference(x),
    "a view, transposed": lambda x: x.T.contiguous().T,
    "numpy": lambda x: x.numpy(),
    "numpy objects": lambda x: x.numpy().astype(object),
    "numpy texts": lambda x: x.numpy().astype(str),
    "numpy datetimes": lambda x: x.long().numpy().astype("datetime64[s]"),
    "lists": lambda x: x.tolist(),
    "lists with None": lambda x: [[None, *row[1:]] for row in x.tolist()],
    "lists of texts": lambda x: [["a"] * len(row) for row in x.tolist()],
    "ragged lists": lambda x: [row[: n + 1] for n, row in enumerate(x.tolist())],
    "a generator": lambda x: iter(x),
}
NAMES = ("responses", "mask", *COLUMNS, "log_probs", "scores")


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x + 0


def single_oddities() -> Iterator[dict[str, Any]]:
    for name, (_, make) in itertools.product(NAMES, ODD.items()):
        given = batch(rows=3, width=5)
        try:
            given[name] = make(given[name])
        except (RuntimeError, TypeError, IndexError):
            continue  # this tensor cannot be made
        yield given


def random_oddities(count: int) -> Iterator[dict[str, Any]]:
    """Several arguments odd at once, in rows of other numbers and lengths."""
    random = np.random.default_rng(0)
    for _ in range(count):
        given = batch(rows=int(random.integers(1, 5)), width=int(random.integers(4, 9)))
        for name in random.choice(NAMES, 3, replace=False):
            make = list(ODD.values())[int(random.integers(len(ODD)))]
            try:
                given[name] = make(given[name])
            except (RuntimeError, TypeError, IndexError):
                continue
        yield given


def other_arguments() -> Iterator[dict[str, Any]]:
    for settings in (
        {"estimator": "no such thing"},
        {"gamma": "high"},
        {"lam": float("nan")},
        {"clip_low": -1},
        {"unknown": object()},
        7,
        "text",
    ):
        yield {**batch(3, 5), "settings": settings}
    for extra in (
        {"tokenizer": Refuses()},
        {"tokenizer": "a name"},
        {"prompts": [1, 2, 3]},
        {"prompts": [None] * 3},
        {"prompts": "abc"},
        {"texts": [1]},
        {"parts": [1, 2, 3]},
        {"parts": [{"a": "b"}] * 3},
        {"group": [[1], [2], [3]]},
        {"truncated": ["no"] * 3},
        {"bootstrap": ["x"] * 3},
        {"lengths": [99] * 3},
        {"lengths": [-1] * 3},
        {"scale": [0.0] * 3},
        {"moments": "wide"},
        {"moments": (0.0, 0.0)},
        {"metrics": {"loss": object()}},
        {"metrics": {"loss": torch.ones(3)}},
        {"metrics": 5},
        {"no_such_column": torch.ones(3, 5)},
    ):
        yield {**batch(3, 5), **extra}
    yield {}
    yield {"mask": torch.ones(3, 5)}


def test_odd_arguments_never_reach_the_host(tmp_path: Path) -> None:
    tried = 0
    recorder = Recorder(tmp_path / "run", samples=2, settings=SETTINGS)
    for given in itertools.chain(single_oddities(), random_oddities(100), other_arguments()):
        tried += 1
        recorder.record(tried, **given)
        recorder.close()
    for step in (None, "seven", 1.5, float("nan"), -1, 2**70, torch.tensor(4), Refuses()):
        tried += 1
        recorder.record(step, **batch(3, 5))  # type: ignore[arg-type]
        recorder.close()
    print(f"{tried} odd calls")
    assert tried > 450
    recorder.record(tried + 1, **batch())  # and it still records
    recorder.close()
    assert (tried + 1) in steps(tmp_path / "run")
    assert len(samples(tmp_path / "run", tried + 1)) == 2


@pytest.mark.parametrize("folder", [None, 5, "", "a\0b", "x" * 5000])
def test_a_folder_that_cannot_be_is_not_raised(folder: Any) -> None:
    telescope.record(1, folder=folder, every=1, **batch())


def test_a_read_only_folder_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    recorder = Recorder(tmp_path / "file" / "run")  # no rights would not stop root
    for step in range(3):
        recorder.record(step, metrics={"loss": 1.0}, **batch())
        recorder.close()
    own = [said for said in caplog.messages if "Not a directory" in said]  # others may end late
    assert len(own) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_disk_that_fails_does_not_stop_training_and_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    recorder = Recorder(tmp_path / "run")
    with monkeypatch.context() as broken:

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(code, os.strerror(code))

        broken.setattr("telescope.peers.recorder.save_table", fail)
        recorder.record(1, **batch())
        recorder.close()
    recorder.record(2, **batch())
    recorder.close()
    assert steps(tmp_path / "run") == [2]


def test_a_folder_deleted_in_the_middle_is_made_again(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    for step in (1, 2):
        recorder.record(step, metrics={"loss": 1.0}, **batch())
        recorder.close()
        shutil.rmtree(tmp_path / "run")
    recorder.record(3, metrics={"loss": 1.0}, **batch())
    recorder.close()
    assert steps(tmp_path / "run") == [3]


def test_a_forked_process_records_with_a_writer_of_its_own(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.record(1, **batch())
    recorder.close()
    child = os.fork()
    if child == 0:
        recorder.record(2, responses=[[1, 2]])
        recorder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert steps(tmp_path / "run") == [1, 2]


def test_a_writer_that_died_is_replaced(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")

    def die() -> None:
        raise SystemExit

    recorder._background.submit(die)
    recorder._background.submit(raises)
    recorder.close()
    recorder.record(1, **batch())
    recorder.close()
    assert steps(tmp_path / "run") == [1]


def test_a_slow_disk_drops_steps_instead_of_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("telescope.peers.recorder.save_table", lambda *_: go_on.wait(60))
    recorder = Recorder(tmp_path / "run")
    for step in range(80):
        recorder.record(step, **batch())  # returns, though nothing is written
    assert recorder._background._jobs.qsize() <= 64
    go_on.set()
    recorder.close()
    assert recorder._held == 0
    assert caplog.text.count("slower than training") == 1


def test_large_steps_that_wait_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("telescope.peers.recorder.HELD", 5_000)
    go_on = threading.Event()
    recorder = Recorder(tmp_path / "run")
    recorder._background.submit(go_on.wait)  # type: ignore[arg-type]
    for step in range(20):
        recorder.record(step, **batch())
    assert 0 < recorder._held <= 5_000
    go_on.set()
    recorder.close()
    assert recorder._held == 0
    assert len(steps(tmp_path / "run")) < 20
    assert caplog.text.count("slower than training") == 1


def test_a_background_that_never_ends_is_waited_for_only_so_long() -> None:
    go_on = threading.Event()
    background = Background("test")
    background.submit(go_on.wait)  # type: ignore[arg-type]
    before = time.monotonic()
    assert not background.finish(0.05)
    assert time.monotonic() - before < 30
    go_on.set()
    assert background.finish(30)


def test_what_the_trainer_changes_afterwards_is_not_recorded(tmp_path: Path) -> None:
    given = batch()
    before = given["values"].clone()
    recorder = Recorder(tmp_path / "run", settings=SETTINGS)
    held = threading.Event()
    recorder._background.submit(held.wait)  # type: ignore[arg-type]
    recorder.record(1, **given)
    given["values"].zero_()
    held.set()
    recorder.close()
    found = samples(tmp_path / "run", 1)[1]
    assert found.columns["values"] == pytest.approx(before[1, : len(found)].tolist())


def test_of_a_huge_batch_only_the_first_rows_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = batch(rows=40, width=20)
    monkeypatch.setattr("telescope.peers.snapshot.LARGEST", 10_000)
    copied, whole = snapshot(given, 4)
    assert not whole
    assert 4 <= len(copied["responses"]) < 40
    assert sum(x.nbytes for x in copied.values()) <= 10_000
    recorder = Recorder(tmp_path / "run", samples=4, settings=SETTINGS)
    recorder.record(1, **given)
    recorder.close()
    raw = (given["returns"] - given["values"])[given["mask"] > 0]
    assert samples(tmp_path / "run", 1)[0].whiten_std == pytest.approx(raw.std().item(), abs=1e-5)


def test_metrics_stay_within_a_tenth_of_the_limit(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", max_mb=0.02, strict=True)
    for step in range(300):
        recorder.log(step, {"loss": 0.5})
    path = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line)["step"] for line in path.open()]
    assert path.stat().st_size <= 2_000
    assert rows[0] == 0
    assert rows[-1] == 299
    assert rows == sorted(rows)
