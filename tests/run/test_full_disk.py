"""A full disk or an unusable run folder: one line says so, and earlier checkpoints stay usable."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from telescope.errors import TelescopeError
from telescope.trainer import Trainer
from tests.refusals import Job, length, names_of_checkpoints, refusal


@pytest.fixture
def small_disk():
    """small_disk(bytes): from now on this process cannot write a larger file.

    Python ignores the signal SIGXFSZ, so the write raises an OSError.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [22_000, 60_000], ids=["in-the-weights", "in-the-optimizer-state"])
def test_a_full_disk_costs_only_the_checkpoint_being_written(
    room: int, job: Job, small_disk: Callable[[int], None], capsys: pytest.CaptureFixture[str]
):
    config = job(("steps", "3"))
    calls = []

    def fills_up(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 2:
            small_disk(room)
        return length(prompts, completions)

    with pytest.raises(TelescopeError) as error:
        Trainer(config, reward={"length": fills_up}).fit()
    small_disk(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    message = str(error.value)
    assert "\n" not in message
    assert f"cannot save checkpoint {config.run_dir / 'checkpoints' / 'step_000002'}" in message
    assert "step_000001 is intact; free some space and continue with --resume" in message
    assert names_of_checkpoints(config) == ["step_000001"]  # no half-written folder either

    trainer = Trainer(config, reward=length, resume=True)
    assert trainer.step == 1
    trainer.fit()
    assert [row["step"] for row in trainer.history()] == [0, 1, 2, 3]


def test_a_full_disk_before_the_first_checkpoint_says_that_there_is_none(
    job: Job, small_disk: Callable[[int], None], capsys: pytest.CaptureFixture[str]
):
    config = job()
    trainer = Trainer(config, reward=length)
    small_disk(22_000)
    with pytest.raises(TelescopeError, match="no earlier checkpoint exists"):
        trainer.fit()
    assert names_of_checkpoints(config) == []


def test_a_full_disk_while_writing_metrics_is_reported_in_one_line(
    job: Job, small_disk: Callable[[int], None], capsys: pytest.CaptureFixture[str]
):
    config = job(("ledger.samples", "off"))
    trainer = Trainer(config, reward=length)
    small_disk(200)  # room for the line of step 0, not for that of step 1
    with pytest.raises(TelescopeError, match=r"metrics\.jsonl"):
        trainer.fit()


def test_a_run_folder_that_cannot_be_made_is_named(job: Job, tmp_path: Path):
    (tmp_path / "file").write_text("")
    message = refusal(job(("dir", str(tmp_path / "file"))))
    assert f"cannot write into {tmp_path / 'file' / 'run'}: Not a directory; set `dir`" in message


def test_a_run_folder_that_is_a_file_is_named(job: Job, tmp_path: Path):
    (tmp_path / "run").write_text("")
    assert f"cannot write into {tmp_path / 'run'}" in refusal(job())
