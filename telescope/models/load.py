"""Loads Hugging Face models, and says clearly why when it can't."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from telescope.config import ModelConfig
from telescope.errors import TelescopeError
from telescope.models import packed
from telescope.models.lora import adapted, add_adapters, read_adapters, save_adapters
from telescope.models.parallel import state_of


class ValueModel(nn.Module):
    """A backbone with a scalar head: V(s) at every position. The head is float32 and starts at zero, so V starts at 0."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.get_text_config().hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.value(self.backbone(**inputs, use_cache=False).last_hidden_state)  # [B, L]

    def value(self, hidden: Tensor) -> Tensor:
        return self.head(hidden.float()).squeeze(-1)

    def save_pretrained(self, folder: Path, state_dict: dict[str, Tensor]) -> None:
        """A folder that AutoModelForTokenClassification loads (one label: the value), where transformers has one for it."""
        config = copy.deepcopy(self.backbone.config)
        config.num_labels = 1
        classes: Any = transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        if type(config) in classes:
            config.architectures = [classes[type(config)].__name__]
        folder.mkdir(exist_ok=True)
        config.save_pretrained(folder)
        weights = {self._hf_name(name): value.contiguous() for name, value in state_dict.items()}
        if adapted(self):
            save_adapters(self.backbone, folder, weights)
            return
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    def read_weights(self, folder: Path) -> dict[str, Tensor]:
        """What `save_pretrained` wrote, by this model's names."""
        weights = read_adapters(folder) if adapted(self) else load_file(folder / "model.safetensors")
        return {name: weights[self._hf_name(name)] for name in state_of(self)}

    def _hf_name(self, name: str) -> str:
        """head.weight → score.weight (or classifier.weight), backbone.layers.0… → model.layers.0…"""
        config = self.backbone.config
        causal: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        if not name.startswith("head."):
            return name.replace("backbone", causal[type(config)].base_model_prefix, 1)
        classes: Any = transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        source = inspect.getsource(classes[type(config)]) if type(config) in classes else ""
        return name.replace("head", "classifier" if "self.classifier" in source else "score", 1)


@contextmanager
def quiet() -> Iterator[None]:
    """transformers reports and draws bars for every file it touches; a run's output is ours to write."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """The model's tokenizer. It needs an EOS; a missing pad token is filled in, because masks never look at it."""
    tokenizer = _load(AutoTokenizer, path, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise TelescopeError(
            f"the tokenizer of {path} has no EOS token, so a response could never end: "
            "set `eos_token` in its tokenizer_config.json to the token that ends an answer"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_policy(config: ModelConfig, device: torch.device) -> Any:
    model = _load(AutoModelForCausalLM, config.path, dtype=getattr(torch, config.dtype), trust_remote_code=config.trust_remote_code)
    settings = getattr(model, "generation_config", None)
    if settings is not None and not settings.do_sample and (settings.temperature or settings.top_p):
        settings.do_sample = True  # as shipped by some models it contradicts itself, and could not be saved
    if config.lora_rank:
        add_adapters(model, config, path=config.path, task="CAUSAL_LM")
    return _prepare(model, device, config)


def load_critic(config: ModelConfig, device: torch.device) -> ValueModel:
    path = config.critic_path or config.path
    backbone = _load(AutoModel, path, dtype=getattr(torch, config.dtype), trust_remote_code=config.trust_remote_code)
    if config.lora_rank:
        add_adapters(backbone, config, path=path, task="TOKEN_CLS")
    return ValueModel(_prepare(backbone, device, config)).to(device)


def load_reward_model(path: str, device: torch.device) -> Any:
    model = _load(AutoModelForSequenceClassification, path)
    if model.config.num_labels != 1:
        raise TelescopeError(f"reward model {path} has {model.config.num_labels} outputs; a reward model has one (num_labels = 1)")
    return _prepare(model, device).requires_grad_(False)


def is_packable(model: Any) -> bool:
    """Whether the model takes rows without padding (see models/packed.py)."""
    return getattr(model, "packable", False)


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a response: the tokenizer's EOS and those that the generation config names."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    extra = configured if isinstance(configured, list) else [configured] if configured is not None else []
    return sorted({tokenizer.eos_token_id, *extra})


def fingerprint(model: nn.Module) -> str:
    """Names, shapes and a few weights of each parameter: tells one model from another, quickly."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().flatten()
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(flat[:: max(1, flat.numel() // 16)].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _prepare(model: Any, device: torch.device, config: ModelConfig | None = None) -> Any:
    # eval mode for good: dropout would make the ratio differ from 1 before anything was learned
    model = model.to(device).eval()
    if config is not None:
        model.packable = packed.enable(model, compiled=config.compile)
        layers: Any = getattr(model.base_model, "layers", ())
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": True, "preserve_rng_state": False})
            if not model.get_input_embeddings().weight.requires_grad:  # re-entering is quicker, and needs an input with a gradient
                model.enable_input_require_grads()
            model.checkpointed = list(layers)
        for layer in layers if config.compile else ():
            layer.compile(dynamic=True)
    return model


@contextmanager
def checkpointing(model: Any) -> Iterator[None]:
    """Within it a model with `gradient_checkpointing` forgets what its layers computed, and computes it again for the gradient."""
    layers = getattr(getattr(model, "backbone", model), "checkpointed", ())
    for layer in layers:
        layer.training = True  # of the layer alone, which is what transformers asks; its dropouts stay off
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _load(auto: Any, path: str, *, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Any:
    local = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not (local / "config.json").is_file():
        what = "has no config.json" if local.is_dir() else "does not exist"
        raise TelescopeError(f"model folder {path} {what}: give a Hugging Face model folder or a hub name such as org/model")
    source = str(local) if local.is_dir() else path
    what = "the tokenizer" if auto is AutoTokenizer else "the model"
    try:
        with quiet():
            if auto is AutoTokenizer:
                return auto.from_pretrained(source, **kwargs)
            model, info = auto.from_pretrained(source, dtype=dtype, output_loading_info=True, **kwargs)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise TelescopeError(f"cannot load {what} from {path}: {first}") from error
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        raise TelescopeError(f"cannot load {what} from {path}: its files have no weights for {absent[0]}, so it would start at random")
    return model
