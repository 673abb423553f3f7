"""A model that is built without weights, sharded and filled equals the model that was loaded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.config import Bins, ModelConfig
from telescope.errors import TelescopeError
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import (
    fingerprint,
    is_packable,
    load_critic,
    load_policy,
    load_sharded,
    new_policy,
    new_value_model,
)
from telescope.models.parallel import ProcessGroup
from telescope.roles.actor import Actor
from tests.fakes import hand_batch
from tests.models.test_families import FAMILIES, write_family

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt2"], ids=str)
def test_a_sharded_family_computes_what_the_full_model_does(
    family: str, tmp_path: Path, ranks: ProcessGroup
) -> None:
    config = ModelConfig(path=str(write_family(family, tmp_path / "model")))
    batch = hand_batch([[1, 1, 1, 1], [1, 1, 0, 0]])
    policy = load_policy(config, CPU)
    critic = load_critic(config, CPU)
    (one, other), print_of_policy = load_sharded(new_policy, config, ranks, count=2)
    (values,), print_of_critic = load_sharded(new_value_model, config, ranks)
    assert (print_of_policy, print_of_critic) == (fingerprint(policy), fingerprint(critic))
    assert is_packable(one) == is_packable(policy)
    assert one.generation_config.eos_token_id == policy.generation_config.eos_token_id
    # Tied parameters appear once.
    names = [name for name, _ in policy.named_parameters()]
    assert [name for name, _ in one.named_parameters()] == names
    with torch.no_grad():
        expected = policy_forward(policy, batch, temperature=1).log_probs
        for model in (one, other):
            log_probs = policy_forward(model, batch, temperature=1).log_probs
            assert torch.equal(log_probs, expected)
        for head in (values.head.weight, critic.head.weight):
            head.fill_(1.0)
        assert torch.equal(value_forward(values, batch).values, value_forward(critic, batch).values)


def test_weights_are_sent_as_they_are_once_rounded(tmp_path: Path, ranks: ProcessGroup) -> None:
    config = ModelConfig(path=str(write_family("llama, tied", tmp_path / "model")))
    actor = Actor.__new__(Actor)
    (actor.model,), _ = load_sharded(new_policy, config, ranks)
    sent = dict(actor.weights(torch.bfloat16))
    whole = dict(load_policy(config, CPU).named_parameters())
    assert sent.keys() == whole.keys()
    for name, value in sent.items():
        assert value.dtype is torch.bfloat16
        assert torch.equal(value, whole[name].bfloat16())


@pytest.mark.parametrize("lora", [0, 3], ids=["full", "lora"])
def test_a_random_value_head_is_the_same_sharded(
    tmp_path: Path, ranks: ProcessGroup, lora: int
) -> None:
    if lora:
        pytest.importorskip("peft")
    config = ModelConfig(
        path=str(write_family("llama", tmp_path / "model")), dtype="bfloat16", lora_rank=lora
    )
    critic = load_critic(config, CPU, Bins(7, -1.0, 1.0), head_seed=3)
    (sharded,), print_of_critic = load_sharded(
        partial(new_value_model, bins=Bins(7, -1.0, 1.0), head_seed=3), config, ranks
    )
    assert torch.equal(sharded.head.weight.full_tensor(), critic.head.weight)
    assert critic.head.weight.abs().min() > 0
    assert print_of_critic == fingerprint(critic)


def test_a_model_to_be_sharded_reads_no_weights(tmp_path: Path) -> None:
    folder = write_family("llama", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    for make in (new_policy, new_value_model, partial(new_value_model, head_seed=0)):
        with torch.device("meta"):
            model = make(ModelConfig(path=str(folder)), empty=True)
        assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def test_tensors_that_a_model_holds_beside_its_buffers_are_filled_too(
    tmp_path: Path, ranks: ProcessGroup
) -> None:
    def make(config: ModelConfig, *, empty: bool = False) -> Any:
        model = new_policy(config, empty=empty)
        model.model.scale = torch.full((2,), 3.0)  # on the meta device where that is the default
        return model

    config = ModelConfig(path=str(write_family("llama", tmp_path / "model")))
    (model,), _ = load_sharded(make, config, ranks)
    assert model.model.scale.tolist() == [3.0, 3.0]


def test_a_model_without_layers_is_refused_with_what_to_do(
    tmp_path: Path, ranks: ProcessGroup
) -> None:
    config = ModelConfig(path=str(write_family("gpt2", tmp_path / "model")))
    message = "GPT2Model cannot be sharded: it has no `layers`; use backend = 'local'"
    with pytest.raises(TelescopeError, match=message):
        load_sharded(new_policy, config, ranks)
