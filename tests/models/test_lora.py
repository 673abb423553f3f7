"""LoRA: adapters are all that is trained, wherever the model runs; without them it is the model it was."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from telescope.algorithms import log_probs_from_logits
from telescope.build import build_roles
from telescope.commands import main
from telescope.config import Config, ModelConfig, load_config
from telescope.errors import TelescopeError
from telescope.models.fast.fuse import fuse, unfuse
from telescope.models.flops import cost_of
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import checkpointing, is_packable, load_critic, load_policy, quiet
from telescope.models.lora import adapted, adapters_off, merge, trained_weights
from telescope.run.export import evaluate_run, export_run
from telescope.scale import plan
from telescope.trainer import Trainer
from tests.fakes import hand_batch, read_shards, tiny_config, write_tiny_model
from tests.models.fast.test_packed import (
    DEVICE,
    PROMPTS,
    assert_same,
    batch,
    engine,
    gradients,
    same_rollout,
    weigh,
)
from tests.models.test_families import SMALL, write_family

peft = pytest.importorskip("peft", reason="LoRA comes with the extra `peft`")
MakeConfig = Callable[..., Config]
LORA = ("model.lora_rank", "4")


def reward(response_ids):
    return [len(set(ids)) / 6 for ids in response_ids]


def wake(model: torch.nn.Module) -> None:
    """Adapters as after some training: they start at B = 0, where nothing would notice if they were left out."""
    generator = torch.Generator().manual_seed(1)
    for layer in adapted(model):
        weight = layer.lora_B["default"].weight
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator).to(weight)


def policy(path: str | Path, *, awake: bool = True, **settings):
    model = load_policy(ModelConfig(path=str(path), lora_rank=3, **settings), DEVICE)
    if awake:
        wake(model)
    return model


@pytest.fixture(scope="module", params=["llama, tied", "qwen2", "qwen3 moe", "gemma3", "gpt2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(request.param, tmp_path_factory.mktemp("family") / "model")


def test_adapters_stand_beside_every_projection_and_nothing_else_is_trained(family: Path) -> None:
    model = policy(family)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)
    assert not any(
        hasattr(layer, "lora_A")
        for layer in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    assert all(
        hasattr(layer, "lora_A")
        for name, layer in model.named_modules()
        if name.endswith(("q_proj", "mlp.down_proj", "c_attn"))
    )
    critic = load_critic(ModelConfig(path=str(family), lora_rank=3), DEVICE)
    assert {name for name in trained_weights(critic) if ".lora_" not in name} == {
        "head.weight",
        "head.bias",
    }


def test_it_starts_as_the_model_it_was_made_from_always_with_the_same_adapters(
    family: Path,
) -> None:
    before = torch.get_rng_state()
    one, other = policy(family, awake=False), policy(family, awake=False)
    assert torch.equal(before, torch.get_rng_state())
    assert all(
        torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True)
    )
    plain = load_policy(ModelConfig(path=str(family)), DEVICE)
    outputs = [policy_forward(model, batch(), temperature=1.0).log_probs for model in (one, plain)]
    torch.testing.assert_close(*outputs)


def test_packed_rows_see_the_adapters(family: Path) -> None:
    results = []
    for packs in (True, False):
        model = policy(family)
        assert is_packable(model)
        model.packable = packs
        out = policy_forward(model, batch(), temperature=0.7)
        results.append(
            [out.log_probs[batch().mask].detach(), *gradients(weigh(out.log_probs), model)]
        )
        assert len(results[-1]) == 1 + len(trained_weights(model))
    assert_same(*results)
    with adapters_off(model):
        assert (
            policy_forward(model, batch(), temperature=0.7).log_probs - out.log_probs
        ).abs().max() > 0.01


@pytest.mark.parametrize("option", ["gradient_checkpointing", "fused"])
def test_what_saves_memory_or_time_changes_no_gradient(family: Path, option: str) -> None:
    if option == "fused":
        pytest.importorskip("triton")
    results = []
    for on in (False, True):
        model = policy(family, gradient_checkpointing=on and option == "gradient_checkpointing")
        if option == "fused":
            (fuse if on else unfuse)(model.base_model)
        with adapters_off(model):
            off = policy_forward(model, batch(), temperature=1.0).log_probs.detach()
        with checkpointing(model):
            out = policy_forward(model, batch(), temperature=1.0)
            results.append([off, out.log_probs.detach(), *gradients(weigh(out.log_probs), model)])
    assert_same(*results)


@pytest.mark.parametrize("targets", [["q_proj"], ["v_proj", "up_proj"]])
def test_layers_of_which_only_some_have_adapters_are_still_joined_rightly(
    targets: list[str], tiny_model: Path
) -> None:
    pytest.importorskip("triton")
    results = []
    for change in (unfuse, fuse):
        model = policy(tiny_model, lora_targets=targets)
        assert {
            name.rpartition(".")[2]
            for name, layer in model.named_modules()
            if hasattr(layer, "lora_A")
        } == set(targets)
        change(model.base_model)
        out = policy_forward(model, batch(), temperature=1.0)
        results.append([out.log_probs.detach(), *gradients(weigh(out.log_probs), model)])
    assert_same(*results)


def test_the_gpu_sampler_samples_from_the_adapted_policy(tiny_model: Path) -> None:
    pytest.importorskip("triton")
    model, mask = policy(tiny_model), (PROMPTS > 0).long()
    if DEVICE.type != "cuda":
        fuse(model.base_model)
    sampler = engine(model)
    sampler.capture = DEVICE.type == "cuda"
    ours = sampler.generate(PROMPTS, mask, seed=0, greedy=True)
    same_rollout(
        ours, engine(policy(tiny_model), kind="eager").generate(PROMPTS, mask, seed=0, greedy=True)
    )
    with adapters_off(model):
        assert not torch.equal(
            engine(model).generate(PROMPTS, mask, seed=0, greedy=True).responses, ours.responses
        )
    for weight in trained_weights(model).values():  # an update, which a captured step has to see
        weight.mul_(1.5)
    again, width = sampler.generate(PROMPTS, mask, seed=0), slice(PROMPTS.shape[1] - 1, -1)
    ids = torch.cat([PROMPTS, again.responses], 1)[1:2]
    expected = log_probs_from_logits(
        model(input_ids=ids).logits.float()[:, width], again.responses[1:2]
    )[0]
    length = int(again.lengths[1])
    torch.testing.assert_close(
        again.log_probs[1, :length], expected[:length].detach(), atol=1e-4, rtol=1e-4
    )


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
    trainer = Trainer(
        make_config(LORA, ("steps", "3")), reward=reward
    )  # one for the head, one for B, one for A
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
        assert {name for name in saved if name.startswith("weight/")} == {
            f"weight/{name}" for name in states[0]
        }  # not the model's own


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
    merge(model)
    assert not adapted(model)
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
    (folder / "config.toml").write_text(
        (folder / "config.toml").read_text("utf-8").replace(run.config.model.path, str(other)),
        "utf-8",
    )
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


def test_a_frozen_weight_costs_a_training_step_two_thirds(tiny_model: Path) -> None:
    rows = hand_batch([[1] * 6])
    frozen, plain = (
        cost_of(load_policy(ModelConfig(path=str(tiny_model), lora_rank=rank), DEVICE))
        for rank in (1, 0)
    )
    adapters = frozen.matrices - plain.matrices
    tokens, head = sum(rows.row_lengths()), plain.head * 6
    spared = plain.training_flops(rows, 1) - 2 * (plain.matrices * tokens + head)
    assert frozen.training_flops(rows, 1) == spared + 6 * adapters * tokens


@pytest.mark.parametrize("setting", ["lora_alpha=8", "lora_targets=q_proj"])
def test_settings_of_adapters_that_do_not_exist_are_refused(setting: str) -> None:
    key, value = setting.split("=")
    with pytest.raises(
        TelescopeError,
        match=rf"model\.{key} without model\.lora_rank: set the rank of the adapters, e\.g\. 16",
    ):
        load_config(None, [(f"model.{key}", value)])


@pytest.mark.parametrize("target", ["qproj", "lm_head", "embed_tokens", "input_layernorm", "proj"])
def test_targets_that_cannot_have_adapters_are_refused(target: str, tiny_model: Path) -> None:
    with pytest.raises(
        TelescopeError,
        match=rf"has no inner linear layer '{target}'; it has down_proj, gate_proj, k_proj, o_proj, q_proj",
    ):
        policy(tiny_model, lora_targets=["v_proj", target])


def test_experts_that_peft_would_adapt_are_refused(tmp_path: Path) -> None:
    """A first layer without experts has layers of the names that peft takes for those of experts."""
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
    }
    with quiet():
        transformers.AutoModelForCausalLM.from_config(
            transformers.Qwen3MoeConfig(**SMALL, **experts)
        ).save_pretrained(tmp_path)
    with pytest.raises(
        TelescopeError,
        match=r"peft would adapt the experts of .* too: name the attention's layers alone",
    ):
        policy(tmp_path)
    assert adapted(policy(tmp_path, lora_targets=["q_proj", "v_proj"]))


def test_a_plan_does_not_know_lora() -> None:
    with pytest.raises(
        TelescopeError, match=r"does not know LoRA yet: --model\.lora_rank 0 plans that"
    ):
        plan.run(SimpleNamespace(gpus="1"), None, [LORA])


def test_without_peft_the_remedy_is_said(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        TelescopeError, match=r"model\.lora_rank needs peft: pip install -e '.\[peft\]'"
    ):
        policy(tiny_model)


def test_values_see_the_critics_adapters(tiny_model: Path) -> None:
    results = []
    for packs in (True, False):
        critic = load_critic(ModelConfig(path=str(tiny_model), lora_rank=3), DEVICE)
        wake(critic)
        critic.head.weight.data.fill_(0.1)
        critic.backbone.packable = packs
        out = value_forward(critic, batch())
        results.append([out.values[batch().mask].detach(), *gradients(weigh(out.values), critic)])
        assert len(results[-1]) == 1 + len(trained_weights(critic))
    assert_same(*results)


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
