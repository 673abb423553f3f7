"""Ranks that share the tokens of the same rows compute what one process computes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from telescope.config import Bins, ModelConfig
from telescope.errors import TelescopeError
from telescope.models.fast.packed import PackedRows
from telescope.models.fast.token_shard import TokenShard
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import (
    checkpointing,
    load_critic,
    load_policy,
    load_sharded,
    new_policy,
    new_value_model,
)
from telescope.models.parallel import ProcessGroup, full_tensor
from tests.fakes import hand_batch
from tests.models.test_families import FAMILIES, SMALL, write_family
from tests.together import together

CPU = torch.device("cpu")
PACKED = [name for name in FAMILIES if name not in ("gpt2", "gemma2")]
BINS = Bins(7, -1.0, 3.0)


def batch():
    """33 tokens, odd, in rows of 15, 5, 8 and 5: the first is most of one share."""
    rows = hand_batch([[1] * n + [0] * (11 - n) for n in (11, 3, 7, 1)], prompt=4, seed=3)
    attention = rows["attention_mask"].clone()
    attention[1, :2], attention[2, :3] = 0, 0  # prompts of 4, 2, 1 and 4 tokens
    return rows.with_columns(
        attention_mask=attention, position_ids=(attention.cumsum(1) - 1).clamp(min=0)
    )


def weigh(values: Tensor) -> Tensor:
    """A different weight for each token, so that none can be mistaken for another."""
    weights = torch.arange(1.0, batch().mask.numel() + 1).view(batch().mask.shape)
    return (values.masked_fill(~batch().mask, 0.0) * weights).sum() / 100


def computed(model: Any, loss: Tensor, *outputs: Tensor) -> list[Tensor]:
    """Outputs, then the gradient of each weight that is trained."""
    loss.backward()
    weights = [weight.grad for weight in model.parameters() if weight.requires_grad]
    return [out.detach() for out in outputs] + [full_tensor(grad) for grad in weights]


def of_policy(model: Any) -> list[Tensor]:
    with checkpointing(model):
        out = policy_forward(model, batch(), temperature=0.7, entropy="gradient")
        return computed(model, weigh(out.log_probs) + weigh(out.entropy), *out)


def of_critic(model: Any) -> list[Tensor]:
    with checkpointing(model):
        out = value_forward(model, batch())
        assert out.logits is not None
        third = out.logits.log_softmax(-1)[..., 2]
        loss = weigh(out.values) + out.final.sum() + weigh(third)
        return computed(model, loss, out.values, out.final, out.logits)


def sharded(config: ModelConfig, ranks: ProcessGroup) -> list[list[Tensor]]:
    (policy,), _ = load_sharded(new_policy, config, ranks)
    (critic,), _ = load_sharded(partial(new_value_model, bins=BINS, head_seed=0), config, ranks)
    return [of_policy(policy), of_critic(critic)]


def alone(config: ModelConfig) -> list[list[Tensor]]:
    return [of_policy(load_policy(config, CPU)), of_critic(load_critic(config, CPU, BINS, 0))]


def close(one: list[Tensor], other: list[Tensor], scale: float = 1) -> None:
    assert len(one) == len(other) > 3
    for mine, yours in zip(one, other, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-4 * scale, atol=1e-5 * scale)


# ---- every family


def of_families(configs: list[ModelConfig]) -> list[list[list[Tensor]]]:
    ranks = ProcessGroup(CPU, sequence_size=2)
    return [sharded(config, ranks) for config in configs]


def test_two_ranks_that_share_tokens_compute_what_one_process_does(tmp_path: Path) -> None:
    """Log-probs, entropy, values, histograms and all gradients, of each family, with gradient
    checkpointing and with adapters; each with fewer K/V heads than ranks.
    """
    pytest.importorskip("peft")
    folders = [write_family(name, tmp_path / f"model{n}") for n, name in enumerate(PACKED)]
    configs = [ModelConfig(path=str(folder)) for folder in folders]
    again = {"path": str(folders[0]), "gradient_checkpointing": True}
    configs += [ModelConfig(**again), ModelConfig(**again, lora_rank=2)]
    half = ModelConfig(path=str(folders[0]), dtype="bfloat16")
    said = together(2, tmp_path / "ranks", of_families, [*configs, half])
    for ours in said:
        log_probs, rounded = ours[0][0][0], ours.pop()[0][0]
        assert not torch.equal(rounded, log_probs)
        torch.testing.assert_close(rounded, log_probs, rtol=0.05, atol=0.1)
    for config, first, second in zip(configs, *said, strict=True):
        for expected, mine, yours in zip(alone(config), first, second, strict=True):
            close(mine, expected)
            close(yours, expected)


# ---- what each rank holds


def mlp_tokens(config: ModelConfig) -> list[list[int]]:
    """Tokens that each layer's MLP sees in one forward, and in its backward's second one."""
    (policy,), _ = load_sharded(new_policy, config, ProcessGroup(CPU, sequence_size=2))
    seen: list[list[int]] = []
    for layer in policy.model.layers:
        seen.append([])
        layer.mlp.register_forward_hook(
            lambda _, inputs, out, mine=seen[-1]: mine.append(inputs[0].shape[:-1].numel())
        )
    of_policy(policy)
    return seen


def test_each_rank_computes_half_of_the_tokens(tmp_path: Path) -> None:
    """Of 33 tokens 17 each, of which one is padding, in both layers and when recomputed."""
    config = ModelConfig(
        path=str(write_family("llama", tmp_path / "model")), gradient_checkpointing=True
    )
    said = together(2, tmp_path / "ranks", mlp_tokens, config)
    assert said == [[[17, 17], [17, 17]]] * 2


# ---- attention


def attention_errors() -> list[float]:
    """Largest differences of attention over four ranks from that of one, gradients included."""
    group = ProcessGroup(CPU, sequence_size=4).sequence
    assert group is not None
    errors = []
    for lengths in ([9, 4, 1], [3], [16]):  # 14, 3 and 16 tokens: shares of 4, 1 and 4
        for heads, kv_heads in ((4, 4), (4, 2), (4, 1), (12, 6)):
            for window in (None, 3):
                rows = PackedRows(lengths, CPU)
                generator = torch.Generator().manual_seed(0)
                q, k, v, grad = (
                    torch.randn(rows.total, count, 8, generator=generator).requires_grad_()
                    for count in (heads, kv_heads, kv_heads, heads)
                )
                expected = rows.attend(0, q, k, v, 0.5, window)
                wanted = torch.autograd.grad(expected, (q, k, v), grad)
                shard = TokenShard(rows, group)
                place, token = shard.own(np.arange(rows.total))
                out = shard.attend(
                    0, q[shard.tokens], k[shard.tokens], v[shard.tokens], 0.5, window
                )
                ours = group.complete(out[place], token, rows.total)
                got = torch.autograd.grad(ours, (q, k, v), grad)
                errors.append(float((ours - expected).detach().abs().max()))
                for mine, whole in zip(got, wanted, strict=True):
                    torch.distributed.all_reduce(mine)
                    errors.append(float((mine - whole).abs().max()))
    return errors


def test_attention_over_four_ranks_equals_attention_of_one(tmp_path: Path) -> None:
    """With as many K/V heads as query heads, with fewer, with fewer than ranks, and with six, which
    four does not divide; with fewer tokens than ranks; with and without a window.
    """
    for errors in together(4, tmp_path / "ranks", attention_errors):
        assert len(errors) == 3 * 4 * 2 * 4
        assert max(errors) < 1e-5


# ---- what is refused


def mixing_policy(config: ModelConfig, *, empty: bool = False) -> Any:
    """A policy that adds to each token's embedding the one before it in its row."""
    model = new_policy(config, empty=empty)
    first: list[Tensor] = []

    def remember(backbone: Any, inputs: Any, named: dict[str, Any]) -> None:
        count = named["input_ids"].shape[1]
        positions = named.get("position_ids")
        first[:] = [torch.arange(count)[None] == 0 if positions is None else positions == 0]

    def add_previous(layer: Any, inputs: Any, out: Tensor) -> Tensor:
        return out + out.roll(1, 1).masked_fill(first[0][..., None], 0.0)

    model.model.register_forward_pre_hook(remember, with_kwargs=True)
    model.model.embed_tokens.register_forward_hook(add_previous)
    return model


def refusals(padded: Path, odd: Path, even: Path) -> list[str]:
    ranks = ProcessGroup(CPU, sequence_size=2)
    messages = []
    for make, path in ((new_policy, padded), (new_policy, odd), (mixing_policy, even)):
        config = ModelConfig(path=str(path))
        with pytest.raises(TelescopeError) as refused:
            load_sharded(make, config, ranks)
        messages.append(str(refused.value))
    return messages


def test_models_that_cannot_share_tokens_are_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = transformers.LlamaConfig(**{**SMALL, "hidden_size": 24, "num_attention_heads": 3})
    monkeypatch.setitem(FAMILIES, "three heads", three)
    names = ("gemma2", "three heads", "llama")
    folders = [write_family(name, tmp_path / f"model{n}") for n, name in enumerate(names)]
    for padding, heads, mixing in together(2, tmp_path / "ranks", refusals, *folders):
        assert padding == (
            "ray.sequence_parallel_size = 2 needs packed rows, and Gemma2Model runs with padding: "
            "use 1"
        )
        assert heads == (
            "ray.sequence_parallel_size = 2 does not divide the model's 3 attention heads: "
            "use a divisor of 3"
        )
        assert "= 2 changes the outputs of LlamaModel by " in mixing
