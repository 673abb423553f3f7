"""The architectures that people tune.

Each trains for a step, samples what its training forward says, and survives a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from telescope import Trainer
from telescope.data.arithmetic import make_tokenizer
from telescope.models.load import quiet
from tests.fakes import tiny_config

SMALL = {
    "vocab_size": 26,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
FAMILIES = {
    "llama": transformers.LlamaConfig(**SMALL),
    "llama, tied": transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2": transformers.Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SMALL),
    "qwen3 moe": transformers.Qwen3MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    ),
    "mistral": transformers.MistralConfig(**SMALL, sliding_window=5),
    "gemma": transformers.GemmaConfig(**SMALL),
    "gemma2": transformers.Gemma2Config(**SMALL),
    "gemma3": transformers.Gemma3TextConfig(
        **SMALL, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=26,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=None,
        eos_token_id=1,
    ),
}


def write_family(name: str, folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name])
        # Far from HF's start, where every norm is 1 and all tokens are as likely.
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        model.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(params=FAMILIES, ids=str)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_family(request.param, tmp_path / "model")


def test_a_family_trains_samples_consistently_and_resumes(family: Path, tmp_path: Path) -> None:
    def reward(response_ids):
        return [len(r) / 6 for r in response_ids]

    config = tiny_config(tmp_path, family, ("actor.lr", "1e-2"))
    trainer = Trainer(config, reward=reward)
    metrics = trainer.fit()
    assert metrics["rollout/logprob_diff"] < 1e-4
    assert all(value == value for value in metrics.values())
    again = Trainer(config, reward=reward, resume=True)
    for role in ("actor", "critic"):
        ours, restored = (getattr(t.roles, role).model.state_dict() for t in (trainer, again))
        assert all(torch.equal(ours[name], restored[name]) for name in ours)
    fresh = Trainer(tiny_config(tmp_path / "fresh", family), reward=reward)
    start = fresh.roles.actor.model.state_dict()
    end = trainer.roles.actor.model.state_dict()
    assert any(not torch.equal(start[name], end[name]) for name in end)
