"""A run that goes on: what may change in between, what may not, and what was meant to change does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from telescope.errors import TelescopeError
from telescope.rollout.sampler import TorchSampler
from telescope.run.evaluate import evaluate_run
from telescope.trainer import Trainer


def reward(response_ids):
    return [len(set(ids)) / 6 for ids in response_ids]


def again(make_config, *settings: tuple[str, str]) -> Trainer:
    return Trainer(make_config(*settings), reward=reward, resume=True)


def test_a_new_kl_coef_counts_however_often_the_run_is_resumed(make_config) -> None:
    again(make_config, ("steps", "1"), ("credit.kl_coef", "0.02")).fit()
    for _ in range(
        2
    ):  # the first writes the new one into config.toml, and is then lost before its first checkpoint
        assert again(make_config, ("steps", "2"), ("credit.kl_coef", "0.5")).kl_coef == 0.5
    assert again(make_config, ("steps", "2"), ("credit.kl_coef", "0.02")).kl_coef == 0.02


def test_a_new_beta_counts_and_an_adapted_one_goes_on(make_config) -> None:
    adaptive = (("actor.loss", "kl_penalty"), ("actor.beta_target", "1e-6"))
    again(make_config, *adaptive, ("steps", "1")).fit()
    assert (
        again(make_config, *adaptive, ("steps", "2")).roles.actor.loss.beta == 0.5
    )  # one epoch: no KL yet
    changed = again(make_config, *adaptive, ("steps", "2"), ("actor.beta", "0.25"))
    assert changed.roles.actor.loss.beta == 0.25
    changed.save()
    assert (
        again(make_config, *adaptive, ("steps", "2"), ("actor.beta", "0.25")).roles.actor.loss.beta
        == 0.25
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            ("credit.estimator", "gae"),
            ("credit.estimator", "reinforce++"),
            "credit.estimator = one with a critic",
        ),
        (
            ("model.lora_rank", "3"),
            ("model.lora_rank", "4"),
            "model.lora_rank = 3, and the config says 4",
        ),
        (
            ("model.lora_rank", "3"),
            ("model.lora_rank", "0"),
            "model.lora_rank = 3, and the config says 0",
        ),
    ],
)
def test_what_decides_what_is_trained_cannot_change(
    make_config, before, after, message: str
) -> None:
    if "lora" in before[0]:
        pytest.importorskip("peft")
    again(make_config, before, ("steps", "1")).fit()
    with pytest.raises(TelescopeError, match=message):
        again(make_config, after, ("steps", "2"))


def test_adapters_are_not_scaled_otherwise_than_they_were_trained(make_config) -> None:
    pytest.importorskip("peft")
    again(make_config, ("model.lora_rank", "3"), ("steps", "1")).fit()
    with pytest.raises(
        TelescopeError, match=r"model\.lora_alpha = None, and the config says 30: set it back"
    ):
        again(make_config, ("model.lora_rank", "3"), ("model.lora_alpha", "30"), ("steps", "2"))


def test_a_checkpoint_of_another_version_is_called_that(make_config) -> None:
    trainer = again(make_config, ("steps", "1"))
    trainer.fit()
    (path,) = trainer.checkpoints.glob("step_*/checkpoint.json")
    manifest = json.loads(path.read_text("utf-8"))
    path.write_text(
        json.dumps({key: value for key, value in manifest.items() if key != "format"}), "utf-8"
    )
    with pytest.raises(
        TelescopeError,
        match="was written by another version of telescope, and this one cannot read it",
    ):
        again(make_config, ("steps", "2"))


def test_an_evaluation_gives_the_trained_weights_to_a_sampler_that_copies_them(
    make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(("steps", "1"))
    Trainer(config, reward=reward).fit()
    had: list[int] = []

    def load_weights(self: TorchSampler, named, version: int) -> None:
        had.append(self.version)
        self.version = version

    monkeypatch.setattr(TorchSampler, "load_weights", load_weights)
    evaluate_run(Path(config.run_dir), reward)
    assert had[0] == -1
