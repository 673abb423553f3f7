"""A run that diverged: which checkpoint is named, and how to go back to it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from telescope.ledger import reader
from telescope.roles.critic import Critic
from telescope.run import checkpoint
from telescope.trainer import Trainer
from tests.refusals import Job, length, names_of_checkpoints, refusal


@pytest.fixture
def saved(job: Job) -> Job:
    """A run of three steps with a checkpoint of each."""
    Trainer(job(("steps", "3"), ("checkpoint.keep", "3")), reward=length).fit()
    return job


def test_a_run_goes_on_from_the_checkpoint_that_is_named(saved: Job):
    config = saved(("steps", "3"), ("checkpoint.keep", "3"))
    before = (config.run_dir / "metrics.jsonl").read_text()
    message = refusal(config, resume="step_000007")
    assert "has step_000001, step_000002, step_000003" in message

    trainer = Trainer(config, reward=length, resume="step_000001")
    assert trainer.step == 1
    assert names_of_checkpoints(config) == [
        "discarded_step_000002",
        "discarded_step_000003",
        "step_000001",
    ]
    trainer.fit()
    assert [row["step"] for row in trainer.history()] == [0, 1, 2, 3]
    assert len((config.run_dir / "metrics.jsonl").read_text()) == pytest.approx(
        len(before), rel=0.1
    )
    assert reader.steps(config.run_dir) == [1, 2, 3]
    assert (config.run_dir / "ledger" / "discarded" / "step_000003.parquet").is_file()


def test_weights_that_diverged_name_the_last_good_checkpoint(saved: Job):
    """A learning rate of 1e38 makes weights infinite in one step."""
    config = saved(("steps", "4"), ("checkpoint.keep", "3"), ("actor.lr", "1e38"))
    message = refusal(config, resume=True)
    assert "are no longer finite numbers, so they were not saved" in message
    assert "step_000003 is the last good checkpoint: continue from it with --resume" in message
    assert names_of_checkpoints(config) == ["step_000001", "step_000002", "step_000003"]


def test_a_gradient_that_diverged_at_once_leads_back_past_the_newest_checkpoint(
    saved: Job, monkeypatch: pytest.MonkeyPatch
):
    from telescope.errors import DivergedError

    def diverges(*_: object) -> dict[str, float]:
        raise DivergedError("a gradient is not finite")

    monkeypatch.setattr(Critic, "update_critic", diverges)
    config = saved(("steps", "4"), ("checkpoint.keep", "3"))
    assert refusal(config, resume=True) == (
        "a gradient is not finite; step_000003 has the weights that led here: "
        "go back with --resume-from step_000002"
    )
    for name in ("step_000001", "step_000002"):
        shutil.rmtree(config.run_dir / "checkpoints" / name)
    assert "no older one is left: use another --name" in refusal(config, resume=True)
    assert len(checkpoint.list_checkpoints(config.run_dir / "checkpoints")) == 1


def test_a_reward_that_ends_the_process_does_not_end_the_run_in_silence(job: Job):
    def leaves(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        raise SystemExit(0)

    assert "reward function 'leaves' raised SystemExit: 0" in refusal(job(), leaves)
