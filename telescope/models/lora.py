"""LoRA: small trained matrices (adapters, by peft) beside frozen weights.

The policy is weights + adapters; the reference is the weights alone.

    y = W·x + (alpha/rank)·B·A·x      A starts at random, B at zero

Hu et al. 2021, arXiv:2106.09685.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from telescope.config import ModelConfig
from telescope.errors import TelescopeError, pip_install
from telescope.models.quantize import dequantize

_LINEAR = (nn.Linear, Conv1D)
_WEIGHTS = "adapter_model.safetensors"


def add_adapters(model: Any, config: ModelConfig, *, path: str, task: str) -> None:
    """Freezes the model and gives its linear layers adapters.

    The adapters start the same in every process and on every device.
    """
    # peft imports bitsandbytes, which warns of a CPU kernel that nothing here uses.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise TelescopeError(f"model.lora_rank needs peft: {pip_install('peft')}") from None
    # Without the output layer: its weights are also used without calling it.
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _LINEAR) and module is not model.get_output_embeddings()
    }
    known = sorted({name.rpartition(".")[2] for name in layers})
    for target in config.lora_targets:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            raise TelescopeError(
                f"model.lora_targets: {path} has no inner linear layer {target!r}; "
                f"it has {', '.join(known)}"
            )
    settings = LoraConfig(
        task_type=task,
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        target_modules=config.lora_targets or known,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        base_model_name_or_path=path,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inject_adapter_in_model(settings, model)
    if any(not isinstance(layer.base_layer, _LINEAR) for layer in adapted_layers(model)):
        raise TelescopeError(
            f"peft would adapt the experts of {path} too: "
            "name only the attention's layers in model.lora_targets"
        )


def with_own_adapters(backbone: Any, adapted: Any, *, path: str, task: str) -> Any:
    """A copy of the backbone of `adapted` with adapters of its own.

    Everything frozen is shared: both have the same modules and weights in memory.
    """
    shared: dict[int, Any] = {id(p): p for p in backbone.parameters() if not p.requires_grad}
    for module in backbone.modules():
        is_leaf = next(module.children(), None) is None
        if is_leaf and not any(p.requires_grad for p in module.parameters()):
            shared[id(module)] = module
    copied = copy.deepcopy(backbone, shared)
    settings = copy.copy(adapted.peft_config["default"])
    settings.task_type = task
    settings.base_model_name_or_path = path
    copied.peft_config = {"default": settings}
    return copied


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters with a gradient, by name."""
    return {
        name: parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def adapted_layers(model: nn.Module) -> list[Any]:
    """The layers that have adapters."""
    return [module for module in model.modules() if hasattr(module, "lora_A")]


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Within it the model computes what it did before it had adapters."""
    # peft's enable_adapters() would also switch gradients off, which sharded weights remember.
    layers = adapted_layers(model)
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def merge_adapters(model: Any) -> None:
    """Adds the adapters to the weights beside them: an ordinary model that computes the same.

    Quantised weights are made whole first, and stay so: rounding the sum again would lose most of
    what was trained.
    """
    dequantize(model)
    for name, module in list(model.named_modules()):
        if hasattr(module, "lora_A"):
            module.merge()
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, module.base_layer)


def save_adapters(model: Any, folder: Path, weights: dict[str, Tensor]) -> None:
    """Writes a folder that peft loads.

    `weights` are the trained ones by Hugging Face's names, a value head's included.
    """
    settings = copy.copy(model.peft_config["default"])
    settings.inference_mode = True
    settings.save_pretrained(folder)
    named = {}
    for name, value in weights.items():
        peft_name = name.replace(".default.", ".")
        named[f"base_model.model.{peft_name}"] = value.contiguous()
    save_file(named, folder / _WEIGHTS, metadata={"format": "pt"})
