"""Models with LoRA adapters as after some training, and a run of two steps with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from telescope.config import Config, ModelConfig
from telescope.models.load import load_policy
from telescope.models.lora import adapted_layers
from tests.models.fast.test_packed import DEVICE

peft = pytest.importorskip("peft", reason="LoRA comes with the extra `peft`")

MakeConfig = Callable[..., Config]

LORA = ("model.lora_rank", "4")


def reward(response_ids):
    return [len(set(ids)) / 6 for ids in response_ids]


def wake(model: torch.nn.Module) -> None:
    """Makes adapters as after some training.

    They start at B = 0, where no test would notice if they were left out.
    """
    generator = torch.Generator().manual_seed(1)
    for layer in adapted_layers(model):
        weight = layer.lora_B["default"].weight
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator).to(weight)


def policy(path: str | Path, *, awake: bool = True, **settings):
    model = load_policy(ModelConfig(path=str(path), lora_rank=3, **settings), DEVICE)
    if awake:
        wake(model)
    return model
