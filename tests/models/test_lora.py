"""LoRA: only adapters are trained, wherever the model runs; without them it is the base model."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch
import transformers

from telescope.algorithms import log_probs_from_logits
from telescope.config import ModelConfig, load_config
from telescope.errors import TelescopeError
from telescope.models.fast.fuse import fuse, unfuse
from telescope.models.flops import cost_of
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import checkpointing, is_packable, load_critic, load_policy, quiet
from telescope.models.lora import adapted_layers, adapters_off, trained_weights
from tests.fakes import hand_batch
from tests.models.adapted import policy, wake
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
from tests.models.test_families import SMALL


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
    """The first layer has no experts, but layers with the names that peft takes for experts'."""
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
        match=r"peft would adapt the experts of .* too: name only the attention's layers",
    ):
        policy(tmp_path)
    assert adapted_layers(policy(tmp_path, lora_targets=["q_proj", "v_proj"]))


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


def test_bitsandbytes_warns_of_no_kernel_when_adapters_are_made(family: Path) -> None:
    """peft imports it, and it looks for a CPU kernel that nothing here uses."""
    policy(family)
    assert not logging.getLogger("bitsandbytes.backends.cpu.ops").isEnabledFor(logging.WARNING)
