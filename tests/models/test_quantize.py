"""Quantised weights: one base in memory for actor, critic and reference, wherever the model runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from telescope.build import build_local_roles
from telescope.config import ModelConfig, load_config
from telescope.errors import TelescopeError
from telescope.models.fast.fuse import fuse, unfuse
from telescope.models.flops import cost_of
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import (
    checkpointing,
    fingerprint,
    is_packable,
    load_critic,
    load_policy,
    quiet,
)
from telescope.models.lora import adapters_off, merge_adapters, trained_weights
from telescope.models.quantize import QuantizedLinear, dequantize, quantized_layers
from telescope.run.evaluate import evaluate_run
from telescope.run.export import export_run
from telescope.trainer import Trainer
from tests.fakes import read_shards, tiny_config, write_tiny_model
from tests.models.adapted import LORA, MakeConfig, peft, policy, reward, wake
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

bitsandbytes = pytest.importorskip(
    "bitsandbytes", reason="quantised weights come with the extra `bitsandbytes`"
)
KINDS = ["nf4", "int8"]
NF4 = (LORA, ("model.quantize", "nf4"))


def linear(kind: str, *, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, QuantizedLinear]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = nn.Linear(96, 40).to(DEVICE, dtype).requires_grad_(False)
    return plain, QuantizedLinear(plain, kind, DEVICE)


# ---- one layer


@pytest.mark.parametrize(("kind", "error"), [("nf4", 0.12), ("int8", 0.006)])
def test_weights_are_rounded_to_the_levels_of_their_block(kind: str, error: float) -> None:
    plain, layer = linear(kind)
    difference = layer.full_weight() - plain.weight
    assert difference.norm() / plain.weight.norm() < error
    assert difference.abs().max() > 0


@pytest.mark.parametrize(("kind", "size"), [("nf4", 0.5), ("int8", 1.0)])
def test_a_weight_takes_half_a_byte_or_one_and_a_share_of_a_scale(kind: str, size: float) -> None:
    _, layer = linear(kind)
    taken = layer.packed.nbytes + layer.scales.nbytes
    assert taken / (96 * 40) == pytest.approx(size + 4 / 64, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_output_and_gradient_are_those_of_the_full_weights(kind: str, dtype: torch.dtype) -> None:
    _, layer = linear(kind, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 96, generator=generator).to(DEVICE, dtype)
    results = []
    for module in (layer, layer.plain()):
        given = x.clone().requires_grad_()
        out = module(given)
        out.float().square().sum().backward()
        results.append((out, given.grad))
        with torch.no_grad():
            assert torch.equal(module(x), out)
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_output_does_not_depend_on_the_rows_beside_it(kind: str) -> None:
    _, layer = linear(kind)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 96, generator=generator).to(DEVICE)
    beside = torch.cat([x, 1000 * x])
    torch.testing.assert_close(layer(beside)[:4], layer(x))


# ---- models


@pytest.mark.parametrize("kind", KINDS)
def test_everything_but_embeddings_norms_output_layer_and_adapters_is_quantised(
    kind: str, tiny_model: Path
) -> None:
    model = policy(tiny_model, quantize=kind)
    quantized = {name for name, _ in quantized_layers(model)}
    plain = {name for name, layer in policy(tiny_model).named_modules() if type(layer) is nn.Linear}
    assert quantized == {name for name in plain if name.endswith(".base_layer")}
    assert len(quantized) == 2 * 7
    assert trained_weights(model).keys() == trained_weights(policy(tiny_model)).keys()


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_its_rounded_weights_say(kind: str, tiny_model: Path) -> None:
    model = policy(tiny_model, quantize=kind)
    whole = policy(tiny_model, quantize=kind)
    dequantize(whole)
    results = []
    for each in (model, whole):
        assert is_packable(each)
        out = policy_forward(each, batch(), temperature=0.7)
        results.append([out.log_probs.detach(), *gradients(weigh(out.log_probs), each)])
    assert_same(*results)
    exact = policy_forward(policy(tiny_model), batch(), temperature=0.7).log_probs
    assert (exact - results[0][0]).abs().max() > 1e-3


@pytest.mark.parametrize("option", ["gradient_checkpointing", "fused", "padded"])
def test_what_saves_memory_or_time_changes_no_gradient(tiny_model: Path, option: str) -> None:
    if option == "fused":
        pytest.importorskip("triton")
    results = []
    for on in (False, True):
        checkpointed = on and option == "gradient_checkpointing"
        model = policy(tiny_model, quantize="nf4", gradient_checkpointing=checkpointed)
        if option == "fused":
            (fuse if on else unfuse)(model.base_model)
        if option == "padded":
            model.packable = not on
        with adapters_off(model):
            off = policy_forward(model, batch(), temperature=1.0).log_probs.detach()
        with checkpointing(model):
            out = policy_forward(model, batch(), temperature=1.0)
            results.append([off, out.log_probs.detach(), *gradients(weigh(out.log_probs), model)])
    mask = batch().mask
    for found in results:
        found[:2] = [values[mask] for values in found[:2]]
    assert_same(*results)


def test_the_gpu_sampler_samples_from_the_quantised_policy(tiny_model: Path) -> None:
    pytest.importorskip("triton")
    model, mask = policy(tiny_model, quantize="nf4"), (PROMPTS > 0).long()
    if DEVICE.type != "cuda":
        fuse(model.base_model)
    sampler = engine(model)
    sampler.capture = DEVICE.type == "cuda"
    ours = sampler.generate(PROMPTS, mask, seed=0, greedy=True)
    other = engine(policy(tiny_model, quantize="nf4"), kind="eager")
    same_rollout(ours, other.generate(PROMPTS, mask, seed=0, greedy=True))
    assert sampler._works


def test_checksum_and_cost_are_those_of_the_weights_before_they_were_rounded(
    tiny_model: Path,
) -> None:
    quantized = policy(tiny_model, awake=False, quantize="nf4")
    plain = policy(tiny_model, awake=False)
    assert fingerprint(quantized) == fingerprint(plain)
    assert cost_of(quantized) == cost_of(plain)


# ---- one base for three roles


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("quantize", ["none", *KINDS])
def test_actor_critic_and_reference_have_one_base_and_adapters_of_their_own(
    make_config: MakeConfig, quantize: str, checkpointed: bool
) -> None:
    settings = (("model.quantize", quantize), ("model.gradient_checkpointing", str(checkpointed)))
    roles = build_local_roles(make_config(LORA, *settings), reward)
    actor = roles.actor.model
    critic = roles.critic.model.backbone
    assert roles.reference.model is actor

    def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
        return dict([*model.named_parameters(), *model.named_buffers()])

    own = tensors(actor.base_model)
    theirs = tensors(critic)
    assert own.keys() == theirs.keys()
    for name, tensor in own.items():
        shared = tensor.data_ptr() == theirs[name].data_ptr()
        assert shared is (".lora_" not in name), name
    alone = load_critic(roles.actor.config.model, DEVICE)
    assert fingerprint(alone) == fingerprint(roles.critic.model)
    assert bool(getattr(critic, "checkpointed", ())) is checkpointed
    assert not set(getattr(critic, "checkpointed", ())) & set(getattr(actor, "checkpointed", ()))


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("quantize", ["none", "nf4"])
def test_a_critic_on_the_shared_base_computes_what_one_with_its_own_does(
    tiny_model: Path, quantize: str, checkpointed: bool
) -> None:
    config = ModelConfig(
        path=str(tiny_model),
        lora_rank=3,
        quantize=quantize,
        gradient_checkpointing=checkpointed,
    )
    actor = load_policy(config, DEVICE)
    results = []
    for critic in (
        load_critic(config, DEVICE, policy=actor),
        load_critic(config, DEVICE),
    ):
        wake(critic)
        critic.head.weight.data.fill_(0.1)
        with checkpointing(critic):
            out = value_forward(critic, batch())
            results.append([out.values.detach(), *gradients(weigh(out.values), critic)])
        assert len(results[-1]) == 1 + len(trained_weights(critic))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert all(weight.grad is None for weight in actor.parameters())


def test_training_one_role_changes_no_output_of_the_other(make_config: MakeConfig) -> None:
    roles = build_local_roles(make_config(*NF4), reward)
    rows = batch()
    rows = type(rows)({name: rows[name].cpu() for name in rows}, rows.info)
    before = roles.actor.compute_log_prob(rows), roles.reference.compute_log_prob(rows)
    values = roles.critic.compute_values(rows)["values"]
    roles.critic.model.head.weight.data.fill_(0.1)
    wake(roles.critic.model)
    assert torch.equal(roles.actor.compute_log_prob(rows), before[0])
    changed = roles.critic.compute_values(rows)["values"]
    assert not torch.equal(changed, values)
    wake(roles.actor.model)
    assert torch.equal(roles.critic.compute_values(rows)["values"], changed)
    name = "ref_log_prob"
    assert torch.equal(roles.reference.compute_log_prob(rows)[name], before[1][name])
    assert not torch.equal(roles.actor.compute_log_prob(rows), before[0])


def test_a_critic_from_another_folder_has_a_base_of_its_own(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    other = str(write_tiny_model(tmp_path / "other", seed=1))
    roles = build_local_roles(make_config(*NF4, ("model.critic_path", other)), reward)
    pairs = zip(
        quantized_layers(roles.actor.model), quantized_layers(roles.critic.model), strict=True
    )
    assert all(not torch.equal(a.packed, b.packed) for (_, a), (_, b) in pairs)


# ---- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Trainer:
    settings = (*NF4, ("actor.lr", "3e-2"), ("critic.lr", "3e-2"), ("steps", "3"))
    folder = tmp_path_factory.mktemp("run")
    trainer = Trainer(tiny_config(folder, tiny_model, *settings), reward=reward)
    trainer.fit()
    return trainer


def test_a_checkpoint_holds_adapters_value_head_and_their_optimizer_states(run: Trainer) -> None:
    for role, head in (("actor", set()), ("critic", {"head.weight", "head.bias"})):
        saved = read_shards(run.config.run_dir / "checkpoints" / "step_000003", role)
        weights = {name.partition("/")[2] for name in saved if name.startswith("weight/")}
        assert {name for name in weights if ".lora_" not in name} == head
        assert weights == trained_weights(getattr(run.roles, role).model).keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_bit_for_bit(make_config: MakeConfig, kind: str) -> None:
    settings = (LORA, ("model.quantize", kind), ("checkpoint.every", "2"))
    whole = make_config(*settings, ("steps", "4"), ("name", "whole"))
    Trainer(whole, reward=reward).fit()
    Trainer(make_config(*settings, ("steps", "2"), ("name", "stopped")), reward=reward).fit()
    stopped = make_config(*settings, ("steps", "4"), ("name", "stopped"))
    Trainer(stopped, reward=reward, resume=True).fit()
    for role in ("actor", "critic"):
        states = [
            read_shards(config.run_dir / "checkpoints" / "step_000004", role)
            for config in (whole, stopped)
        ]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_another_quantisation_does_not_continue_a_run(make_config: MakeConfig, run: Trainer):
    changes = {"quantize": "int8"}
    config = run.config.model_copy(update={"model": run.config.model.model_copy(update=changes)})
    with pytest.raises(TelescopeError, match=r"trained with model\.quantize = nf4.*says int8"):
        Trainer(config, reward=reward, resume=True)


def test_eval_scores_the_quantised_policy(run: Trainer) -> None:
    last = run.last_metrics()
    assert evaluate_run(run.config.run_dir, reward) == {
        name: last[name] for name in last if name.startswith("eval/")
    }


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[3, 4, 5, 6, 7]])).logits


def test_an_export_is_the_rounded_weights_made_whole_plus_adapters(
    run: Trainer, tiny_model: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    export_run(run.config.run_dir, tmp_path / "merged")
    export_run(run.config.run_dir, tmp_path / "adapter", adapter=True)
    expected = logits(run.roles.actor.model)
    with quiet():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        base = AutoModelForCausalLM.from_pretrained(tiny_model)
    torch.testing.assert_close(logits(merged), expected, atol=1e-4, rtol=1e-4)
    # Adapters alone go on the folder's own weights, which were not rounded.
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert (logits(adapted) - expected).abs().max() > 1e-3


def test_other_samplers_get_whole_weights_with_the_adapters_merged(run: Trainer) -> None:
    named = dict(run.roles.actor.weights())
    model = load_policy(run.config.model, torch.device("cpu"))
    for name, value in trained_weights(model).items():
        value.copy_(trained_weights(run.roles.actor.model)[name])
    merge_adapters(model)
    merged = model.state_dict()
    assert named.keys() == {name for name in merged if name in named}
    for name, value in named.items():
        torch.testing.assert_close(value, merged[name])


# ---- mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model.quantize=nf4",), r"must be trained: set model\.lora_rank, e\.g\. 16"),
        (("model.quantize=nf4", "model.lora_rank=4", "model.compile=true"), "turn one off"),
        (
            ("model.quantize=nf4", "model.lora_rank=4", "backend=ray"),
            r"model\.quantize = nf4 is for one process.*backend = 'local'",
        ),
        (("actor.optimizer=adamw8bit", "backend=ray"), r"actor\.optimizer = adamw8bit is for one"),
        (("critic.offload_optimizer=true", "backend=ray"), r"critic\.offload_optimizer = True is"),
        (
            ("model.offload_reference=true", "model.lora_rank=4"),
            "the reference is the actor without its adapters; leave it out",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(settings: tuple[str, ...], message: str) -> None:
    pairs = [tuple(setting.split("=")) for setting in settings]
    with pytest.raises(TelescopeError, match=message):
        load_config(None, pairs)


def test_without_bitsandbytes_the_remedy_is_said(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    with pytest.raises(
        TelescopeError, match=r"model\.quantize needs bitsandbytes: .*\[bitsandbytes\]"
    ):
        policy(tiny_model, quantize="nf4")


def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    from tests.models.test_families import write_family

    folder = write_family("gpt2", tmp_path / "model")
    with pytest.raises(TelescopeError, match="has no inner linear layer to quantise"):
        load_policy(ModelConfig(path=str(folder), lora_rank=2, quantize="nf4"), DEVICE)
