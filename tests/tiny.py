"""A model of a few thousand random weights, and a config of two steps with it.

Imports torch only to write the model.
"""

from __future__ import annotations

from pathlib import Path

from telescope.config import Config, load_config

EOS = 1


def write_tiny_model(folder: Path, *, seed: int = 0, hidden: int = 16, layers: int = 2) -> Path:
    """A random Llama of a few thousand weights with the built-in task's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from telescope.data.arithmetic import make_tokenizer
    from telescope.models.load import quiet

    tokenizer = make_tokenizer()
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden,
                intermediate_size=2 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=64,
                pad_token_id=0,
                bos_token_id=None,
                eos_token_id=EOS,
            )
        )
        for parameter in model.parameters():
            parameter.data.mul_(
                4
            )  # the default init is so small that all tokens are equally likely
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def tiny_config(folder: Path, model: Path, *overrides: tuple[str, str]) -> Config:
    """A run of two steps on the built-in task's prompts with the tiny model, in `folder`/run."""
    base = [
        ("dir", str(folder)),
        ("name", "run"),
        ("model.path", str(model)),
        ("steps", "2"),
        ("device", "cpu"),
        ("rollout.batch_size", "8"),
        ("rollout.max_response_tokens", "6"),
        ("actor.lr", "1e-3"),
        ("critic.lr", "1e-3"),
        ("eval.samples", "8"),
        ("eval.prompts", "16"),
        ("checkpoint.every", "1"),
    ]
    return load_config(None, [*base, *overrides])
