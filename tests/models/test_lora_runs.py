"""Runs with LoRA, resumed, evaluated, exported and merged, compute what actor and critic did."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from telescope.build import build_roles
from telescope.commands import main
from telescope.config import ModelConfig
from telescope.errors import TelescopeError
from telescope.models.fast.fuse import unfuse
from telescope.models.forward import policy_forward
from telescope.models.load import load_policy, quiet
from telescope.models.lora import adapted_layers, merge_adapters, trained_weights
from telescope.run.evaluate import evaluate_run
from telescope.run.export import export_run
from telescope.trainer import Trainer
from tests.fakes import hand_batch, read_shards, tiny_config, write_tiny_model
from tests.models.adapted import LORA, MakeConfig, peft, policy, reward, wake
from tests.models.fast.test_packed import (
    DEVICE,
    batch,
)
from tests.models.test_families import write_family
from tests.refusals import edit_config


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reference_is_the_actor_without_adapters_before_and_after_updates(
    make_config: MakeConfig, tiny_model: Path, dtype: str
) -> None:
    config = make_config(LORA, ("model.dtype", dtype), ("actor.lr", "1e-2"))
    start = build_roles(config, reward)
    rows = hand_batch([[1] * 6, [1, 1, 0, 0, 0, 0]])
    expected = start.actor.compute_log_prob(rows)
    assert torch.equal(start.reference.compute_log_prob(rows)["ref_log_prob"], expected)

    trainer = Trainer(config, reward=reward)
    trainer.fit()
    actor, reference = trainer.roles.actor, trainer.roles.reference
    assert reference.model is actor.model  # no second copy
    assert torch.equal(reference.compute_log_prob(rows)["ref_log_prob"], expected)
    assert (actor.compute_log_prob(rows) - expected).abs().max() > 1e-3
    assert [p.dtype for p in actor.learner.masters] == [torch.float32] * len(
        trained_weights(actor.model)
    )


def test_frozen_weights_are_never_written_to(make_config: MakeConfig, tiny_model: Path) -> None:
    # Three steps: one for the head, one for B, one for A.
    trainer = Trainer(make_config(LORA, ("steps", "3")), reward=reward)
    models = {role: getattr(trainer.roles, role).model for role in ("actor", "critic")}
    versions = {
        (role, name): p._version
        for role, model in models.items()
        for name, p in model.named_parameters()
    }
    places = {
        (role, name): p.data_ptr()
        for role, model in models.items()
        for name, p in model.named_parameters()
    }
    start = {
        role: {name: value.clone() for name, value in trained_weights(model).items()}
        for role, model in models.items()
    }
    trainer.fit()
    plain = load_file(tiny_model / "model.safetensors")
    for role, model in models.items():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                assert not torch.equal(parameter, start[role][name]), name
                continue
            assert (parameter._version, parameter.data_ptr()) == (
                versions[role, name],
                places[role, name],
            )
            of_file = name.replace(".base_layer", "").replace("backbone.", "model.")
            assert torch.equal(parameter, plain[of_file]), name
            assert parameter.grad is None


def test_a_stopped_run_goes_on_bit_for_bit(make_config: MakeConfig, tmp_path: Path) -> None:
    settings = (
        LORA,
        ("steps", "4"),
        ("actor.epochs", "2"),
        ("actor.minibatches", "2"),
        ("checkpoint.every", "2"),
    )
    whole, stopped = (
        make_config(*settings, ("name", "whole")),
        make_config(*settings, ("name", "stopped")),
    )
    Trainer(whole, reward=reward).fit()
    Trainer(make_config(*settings, ("name", "stopped"), ("steps", "2")), reward=reward).fit()
    trainers = [Trainer(config, reward=reward, resume=True) for config in (whole, stopped)]
    trainers[1].fit()
    last = [
        {k: v for k, v in t.history()[-2].items() if not k.startswith(("timing/", "perf/"))}
        for t in trainers
    ]
    assert last[0] == last[1]
    for role in ("actor", "critic"):
        states = [trained_weights(getattr(trainer.roles, role).model) for trainer in trainers]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        saved = read_shards(stopped.run_dir / "checkpoints" / "step_000004", role)
        # The checkpoint has the trained weights, not the model's own.
        weights = {name for name in saved if name.startswith("weight/")}
        assert weights == {f"weight/{name}" for name in states[0]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Trainer:
    settings = (LORA, ("actor.lr", "3e-2"), ("critic.lr", "3e-2"), ("device", "cpu"))
    trainer = Trainer(
        tiny_config(tmp_path_factory.mktemp("run"), tiny_model, *settings), reward=reward
    )
    trainer.fit()
    return trainer


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[3, 4, 5, 6, 7]])).logits


def test_exports_compute_what_actor_and_critic_do(
    run: Trainer, tiny_model: Path, tmp_path: Path
) -> None:
    folder, actor, critic = run.config.run_dir, run.roles.actor.model, run.roles.critic.model
    assert (
        export_run(folder, tmp_path / "merged")
        == export_run(folder, tmp_path / "adapter", adapter=True)
        == 2
    )
    with torch.no_grad():
        values = critic(input_ids=torch.tensor([[3, 4, 5, 6, 7]]))
    with quiet():
        base, merged = (
            AutoModelForCausalLM.from_pretrained(path) for path in (tiny_model, tmp_path / "merged")
        )
        assert (logits(base) - logits(actor)).abs().max() > 0.01
        torch.testing.assert_close(logits(merged), logits(actor))
        torch.testing.assert_close(
            logits(peft.PeftModel.from_pretrained(base, tmp_path / "adapter")), logits(actor)
        )
        merged = AutoModelForTokenClassification.from_pretrained(tmp_path / "merged" / "critic")
        torch.testing.assert_close(logits(merged)[..., 0], values)
        base = AutoModelForTokenClassification.from_pretrained(tiny_model, num_labels=1)
        torch.testing.assert_close(
            logits(peft.PeftModel.from_pretrained(base, tmp_path / "adapter" / "critic"))[..., 0],
            values,
        )
    assert not list((tmp_path / "adapter").rglob("model.safetensors"))


def test_a_merged_model_of_any_family_computes_the_same(family: Path) -> None:
    model = policy(family)
    before = policy_forward(model, batch(), temperature=1.0).log_probs
    unfuse(model.base_model)
    merge_adapters(model)
    assert not adapted_layers(model)
    assert (
        model.state_dict().keys()
        == load_policy(ModelConfig(path=str(family)), DEVICE).state_dict().keys()
    )
    torch.testing.assert_close(
        policy_forward(model, batch(), temperature=1.0).log_probs, before, rtol=1e-4, atol=1e-4
    )


def test_a_run_is_evaluated_with_its_adapters(run: Trainer) -> None:
    last = run.last_metrics()
    assert evaluate_run(run.config.run_dir, reward) == {
        name: last[name] for name in last if name.startswith("eval/")
    }


def test_adapters_are_not_put_beside_weights_they_were_not_trained_with(
    run: Trainer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.config.run_dir, folder)
    other = write_tiny_model(tmp_path / "other", seed=1)
    edit_config(folder / "config.toml", run.config.model.path, str(other))
    for use in (lambda: evaluate_run(folder, reward), lambda: export_run(folder, tmp_path / "out")):
        with pytest.raises(TelescopeError, match="belongs to another model: it started from"):
            use()


def test_the_command_line_says_how_to_load_adapters(
    run: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(run.config.run_dir), str(tmp_path / "out"), "--adapter"])
    assert "peft.PeftModel.from_pretrained" in capsys.readouterr().out


def test_a_run_without_adapters_has_none_to_export(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(("steps", "1"))
    Trainer(config, reward=reward).fit()
    with pytest.raises(
        TelescopeError, match=r"has no adapters: it was trained without model\.lora_rank"
    ):
        export_run(config.run_dir, tmp_path / "out", adapter=True)


def test_it_learns(make_config: MakeConfig) -> None:
    settings = (
        ("steps", "12"),
        ("rollout.batch_size", "32"),
        ("actor.lr", "2e-2"),
        ("credit.kl_coef", "0"),
        ("checkpoint.every", "0"),
    )
    trainer = Trainer(
        make_config(LORA, *settings),
        reward={"share": lambda response_ids: [ids.count(5) / 6 for ids in response_ids]},
    )
    trainer.fit()
    scores = [row["reward/score_mean"] for row in trainer.history() if "reward/score_mean" in row]
    assert sum(scores[-3:]) > sum(scores[:3]) + 0.6


@pytest.mark.parametrize("path", ["llama, tied", "gpt2"])
def test_the_weights_for_other_samplers_are_merged_and_have_the_files_names(
    path: str, tmp_path: Path
) -> None:
    folder = write_family(path, tmp_path / "model")
    roles = build_roles(tiny_config(tmp_path, folder, LORA, ("device", "cpu")), reward)
    wake(roles.actor.model)
    plain = load_policy(ModelConfig(path=str(folder)), torch.device("cpu"))
    with torch.no_grad():
        for name, value in roles.actor.weights():
            plain.state_dict()[name].copy_(value)
    torch.testing.assert_close(logits(plain), logits(roles.actor.model), rtol=1e-4, atol=1e-4)
