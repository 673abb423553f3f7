"""The forward passes: the one shift, temperature, padding, and where a critic starts from."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

import telescope
from telescope.batch import TokenBatch
from telescope.config import ModelConfig
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import fingerprint, load_critic, load_policy
from telescope.models.value import ValueModel
from tests.fakes import PositionBackbone, hand_batch

F32 = torch.float32


@pytest.fixture(scope="module")
def policy(tiny_model: Path):
    return load_policy(ModelConfig(path=str(tiny_model)), torch.device("cpu"))


@pytest.fixture(scope="module")
def critic(tiny_model: Path):
    model = load_critic(ModelConfig(path=str(tiny_model)), torch.device("cpu"))
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return model


def with_token(batch: TokenBatch, t: int, token: int) -> TokenBatch:
    ids, responses = batch["input_ids"].clone(), batch["responses"].clone()
    ids[:, 3 + t], responses[:, t] = token, token
    return batch.with_columns(input_ids=ids, responses=responses)


def test_values_are_read_one_position_left_of_their_token() -> None:
    model = ValueModel(PositionBackbone())
    torch.nn.init.ones_(model.head.weight)
    out = value_forward(model, hand_batch([[1, 1, 1, 1], [1, 1, 0, 0]], prompt=3))
    assert out.values[0].tolist() == [2, 3, 4, 5]  # P-1 .. P+T-2
    assert out.final.tolist() == [6, 4]  # after the last token that exists


def test_a_value_has_not_seen_its_own_token(critic) -> None:
    batch = hand_batch([[1, 1, 1, 1]])
    changed = with_token(batch, 2, int(batch["responses"][0, 2]) % 20 + 3)
    before, after = (value_forward(critic, b).values[0] for b in (batch, changed))
    assert torch.equal(before[:3], after[:3])
    assert before[3] != after[3]


def test_the_value_head_starts_at_zero_and_in_float32(tiny_model: Path) -> None:
    model = load_critic(ModelConfig(path=str(tiny_model), dtype="bfloat16"), torch.device("cpu"))
    assert model.head.weight.dtype is F32
    assert next(model.backbone.parameters()).dtype is torch.bfloat16
    assert value_forward(model, hand_batch([[1, 1]])).values.tolist() == [[0.0, 0.0]]


def test_a_critic_of_the_policys_model_takes_its_weights_and_leaves_them_alone(
    tiny_model: Path,
) -> None:
    config = ModelConfig(path=str(tiny_model))
    device = torch.device("cpu")
    policy = load_policy(config, device)
    read = load_critic(config, device)
    taken = load_critic(config, device, policy=policy)
    assert fingerprint(read) == fingerprint(taken)
    own, weights = read.state_dict(), taken.state_dict()
    assert own.keys() == weights.keys()
    assert all(torch.equal(own[name], weights[name]) for name in own)
    assert all(weight.requires_grad for weight in taken.parameters())
    addresses = {weight.data_ptr() for weight in policy.parameters()}
    assert not addresses & {weight.data_ptr() for weight in taken.parameters()}
    torch.nn.init.ones_(read.head.weight)
    torch.nn.init.ones_(taken.head.weight)
    batch = hand_batch([[1, 1, 1, 1], [1, 1, 0, 0]])
    assert torch.equal(value_forward(read, batch).values, value_forward(taken, batch).values)


def test_a_critic_of_another_model_reads_its_own(tiny_model: Path, tmp_path: Path) -> None:
    device = torch.device("cpu")
    policy = load_policy(ModelConfig(path=str(tiny_model)), device)
    with torch.no_grad():
        policy.lm_head.weight += 1
        next(policy.base_model.parameters()).add_(1)
    policy.save_pretrained(tmp_path)
    config = ModelConfig(path=str(tiny_model), critic_path=str(tmp_path))
    critic = load_critic(config, device, policy=load_policy(config, device))
    assert fingerprint(critic) == fingerprint(ValueModel(policy.base_model))


def test_log_probs_are_of_the_token_given_what_came_before_it(policy) -> None:
    batch = hand_batch([[1, 1, 1]])
    logits = policy(input_ids=batch["input_ids"]).logits[0]  # [P+T, V]
    expected = [
        float(logits.detach()[2 + t].log_softmax(-1)[batch["responses"][0, t]]) for t in range(3)
    ]
    got = policy_forward(policy, batch, temperature=1.0).log_probs[0].tolist()
    assert got == pytest.approx(expected, abs=1e-5)


def test_log_probs_are_at_the_sampling_temperature_and_values_are_not(policy, critic) -> None:
    batch = hand_batch([[1, 1, 1]])
    logits = policy(input_ids=batch["input_ids"]).logits[:, 2:-1]  # [B, T, V]
    hot = policy_forward(policy, batch, temperature=2.0)
    expected = (logits / 2).log_softmax(-1).gather(-1, batch["responses"][..., None])[..., 0]
    assert torch.allclose(hot.log_probs, expected, atol=1e-6)
    plain = policy_forward(policy, batch, temperature=1.0)
    assert not torch.allclose(hot.log_probs, plain.log_probs, atol=1e-3)
    assert "temperature" not in inspect.signature(value_forward).parameters


def test_left_padding_of_the_prompt_changes_nothing(policy, critic) -> None:
    batch = hand_batch([[1, 1, 1]])
    pad = torch.zeros(1, 4, dtype=torch.long)
    attention = torch.cat([pad, batch["attention_mask"]], 1)
    padded = TokenBatch(
        {
            "prompts": torch.cat([pad, batch["prompts"]], 1),
            "input_ids": torch.cat([pad, batch["input_ids"]], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
            "responses": batch["responses"],
            "response_mask": batch["response_mask"],
        }
    )
    for forward in (
        lambda b: policy_forward(policy, b, temperature=1.0).log_probs,
        lambda b: value_forward(critic, b).values,
    ):
        assert torch.allclose(forward(batch), forward(padded), atol=1e-5)


def test_bfloat16_runs_and_stays_close(policy, tiny_model: Path) -> None:
    batch = hand_batch([[1, 1, 1], [1, 1, 0]])
    exact = policy_forward(policy, batch, temperature=1.0).log_probs
    small = load_policy(ModelConfig(path=str(tiny_model), dtype="bfloat16"), torch.device("cpu"))
    rough = policy_forward(small, batch, temperature=1.0).log_probs
    assert rough.dtype is F32
    assert torch.allclose(exact, rough, atol=0.1)


def test_only_the_forward_shifts_by_one() -> None:
    """A slice that drops the last position can misalign tokens and predictions.

    algorithms/ shift in time, not in tokens.
    """
    package = Path(telescope.__file__).parent
    shifts = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\[:,\s*[^\]]*:\s*-1\]", path.read_text("utf-8"))
        and "algorithms" not in path.parts
    }
    assert shifts == {"models/forward.py"}
