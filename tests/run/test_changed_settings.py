"""Settings that change between a run and its resume: which may change, and which may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from telescope.errors import TelescopeError
from telescope.rollout.sampler import TorchSampler
from telescope.run.evaluate import evaluate_run
from telescope.trainer import Trainer
from tests.config.configs import typed


def reward(response_ids):
    return [len(set(ids)) / 6 for ids in response_ids]


def again(make_config, *settings: tuple[str, str]) -> Trainer:
    return Trainer(make_config(*settings), reward=reward, resume=True)


def test_a_new_kl_coef_counts_however_often_the_run_is_resumed(make_config) -> None:
    again(make_config, ("steps", "1"), ("credit.kl_coef", "0.02")).fit()
    # The first resume writes the new value into config.toml, but no checkpoint.
    for _ in range(2):
        assert again(make_config, ("steps", "2"), ("credit.kl_coef", "0.5")).kl_coef == 0.5
    assert again(make_config, ("steps", "2"), ("credit.kl_coef", "0.02")).kl_coef == 0.02


def test_a_new_beta_counts_and_an_adapted_one_is_kept(make_config) -> None:
    adaptive = (("actor.loss", "kl_penalty"), ("actor.beta_target", "1e-6"))
    again(make_config, *adaptive, ("steps", "1")).fit()
    unchanged = again(make_config, *adaptive, ("steps", "2"))
    assert unchanged.roles.actor.loss.beta == 0.5  # halved: in one epoch there is no KL
    settings = (*adaptive, ("steps", "2"), ("actor.beta", "0.25"))
    changed = again(make_config, *settings)
    assert changed.roles.actor.loss.beta == 0.25
    changed.save()
    assert again(make_config, *settings).roles.actor.loss.beta == 0.25


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("credit.estimator=gae", "credit.estimator=reinforce++", "estimator = one with a critic"),
        ("model.lora_rank=3", "model.lora_rank=4", "model.lora_rank = 3, and the config says 4"),
        ("model.lora_rank=3", "model.lora_rank=0", "model.lora_rank = 3, and the config says 0"),
    ],
)
def test_settings_that_decide_which_weights_exist_cannot_change(
    make_config, before: str, after: str, message: str
) -> None:
    if "lora" in before:
        pytest.importorskip("peft")
    again(make_config, *typed(before), ("steps", "1")).fit()
    with pytest.raises(TelescopeError, match=message):
        again(make_config, *typed(after), ("steps", "2"))


def test_the_scale_of_adapters_cannot_change(make_config) -> None:
    pytest.importorskip("peft")
    again(make_config, ("model.lora_rank", "3"), ("steps", "1")).fit()
    told = r"model\.lora_alpha = None, and the config says 30: set it back"
    with pytest.raises(TelescopeError, match=told):
        again(make_config, ("model.lora_rank", "3"), ("model.lora_alpha", "30"), ("steps", "2"))


def test_a_checkpoint_of_another_version_is_refused_as_such(make_config) -> None:
    trainer = again(make_config, ("steps", "1"))
    trainer.fit()
    (path,) = trainer.checkpoints.glob("step_*/checkpoint.json")
    manifest = json.loads(path.read_text("utf-8"))
    del manifest["format"]
    path.write_text(json.dumps(manifest), "utf-8")
    told = "was written by another version of telescope, and this one cannot read it"
    with pytest.raises(TelescopeError, match=told):
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
