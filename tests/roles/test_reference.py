"""A reference of its own: `model.reference_path`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from telescope import Trainer
from telescope.build import build_roles
from telescope.config import load_config
from telescope.data.build import build_data
from telescope.errors import TelescopeError
from tests.docs.examples import block
from tests.fakes import write_tiny_model


@pytest.mark.parametrize("lora", ["0", "2"])
def test_the_kl_is_measured_against_the_model_that_reference_path_names(
    lora: str, make_config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "schedule.toml"
    recipe.write_text(block("train.md", "# schedule.toml"), "utf-8")
    assert block("zh/start.md", "# schedule.toml").count("=") == recipe.read_text().count("=")
    documented = load_config(recipe)
    assert documented.actor.lr_min == 1e-7
    assert documented.model.reference_path == "my-sft-model"
    other = str(write_tiny_model(tmp_path / "other", seed=1))
    adapters = ("model.lora_rank", lora)
    config = make_config(adapters, ("model.reference_path", other), ("steps", "1"))
    trainer = Trainer(config)
    roles = trainer.roles
    train, _ = build_data(config, roles.actor.tokenizer)
    batch = roles.actor.generate_sequences(train.take(range(4), seed=5))
    found = roles.reference.compute_log_prob(batch)["ref_log_prob"]
    alone = build_roles(make_config(("model.path", other)))  # the same model as a policy
    assert torch.equal(found, alone.reference.compute_log_prob(batch)["ref_log_prob"])
    assert not torch.allclose(found, batch["old_log_probs"], atol=0.1)
    assert abs(trainer.fit()["reward/kl"]) > 0.1  # the policy has not moved yet
    assert f"reference  {other}, frozen" in capsys.readouterr().out


def test_a_reference_with_fewer_tokens_is_refused(make_config, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path / "small"
    shutil.copytree(make_config().model.path, folder)
    small = LlamaConfig(
        vocab_size=5, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, pad_token_id=0
    )
    LlamaForCausalLM(small).save_pretrained(folder)
    with pytest.raises(TelescopeError, match="knows 5 tokens"):
        Trainer(make_config(("model.reference_path", str(folder))))
