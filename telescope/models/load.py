"""Loads Hugging Face models, and says clearly why when it can't."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from telescope.algorithms import hl_gauss_values
from telescope.config import Bins, ModelConfig
from telescope.errors import TelescopeError
from telescope.models.fast import packed
from telescope.models.fast.capture import Captured, takes_embeddings
from telescope.models.fast.fuse import join
from telescope.models.lora import adapted, add_adapters, save_adapters, trained_weights
from telescope.models.parallel import ProcessGroup, fill, reshard, shard, within


class ValueModel(nn.Module):
    """A backbone with a head: V(s) at every position. The head is float32 and starts at zero, so V starts at 0.

    With `bins` the head says a histogram, V is its mean, and starts at the middle of the range: all bins are as likely.
    With `head_seed` its weights are drawn from N(0, initializer_range²) instead, as transformers does for a new head; the bias is 0.
    """

    def __init__(
        self, backbone: Any, bins: Bins | None = None, head_seed: int | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.bins = backbone, bins
        config = backbone.config.get_text_config()
        self.head = nn.Linear(config.hidden_size, bins.count if bins else 1, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if (
            head_seed is not None
        ):  # drawn on the CPU, wherever the model is built: the same on every device
            generator = torch.Generator("cpu").manual_seed(head_seed)
            drawn = torch.randn(
                self.head.weight.shape, generator=generator, dtype=torch.float32, device="cpu"
            )
            self.head.weight.data.copy_(drawn * getattr(config, "initializer_range", 0.02))

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.values(
            self.outputs(self.backbone(**inputs, use_cache=False).last_hidden_state)
        )  # [B, L]

    def outputs(self, hidden: Tensor) -> Tensor:
        """[..., H] to [..., K]: V itself (K = 1), or the logits of the bins."""
        return self.head(hidden.float())

    def values(self, outputs: Tensor) -> Tensor:
        return (
            hl_gauss_values(outputs, low=self.bins.low, high=self.bins.high)
            if self.bins
            else outputs.squeeze(-1)
        )

    def save_pretrained(self, folder: Path) -> None:
        """A folder that AutoModelForTokenClassification loads, where transformers has one for it.

        One label: the value; or one for each bin, named after its middle.
        """
        config = copy.deepcopy(self.backbone.config)
        config.num_labels = self.head.out_features
        if self.bins:
            config.id2label = {
                k: repr(self.bins.low + self.bins.width * (k + 0.5)) for k in range(self.bins.count)
            }
            config.label2id = {label: k for k, label in config.id2label.items()}
        classes: Any = transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        if type(config) in classes:
            config.architectures = [classes[type(config)].__name__]
        folder.mkdir(exist_ok=True)
        config.save_pretrained(folder)
        if adapted(self):
            save_adapters(
                self.backbone,
                folder,
                {self._hf_name(name): value for name, value in trained_weights(self).items()},
            )
            return
        weights = {
            self._hf_name(name): value.contiguous() for name, value in self.state_dict().items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

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
    level, bars = (
        transformers.logging.get_verbosity(),
        transformers.logging.is_progress_bar_enabled(),
    )
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
    model = new_policy(config).to(device)
    settings = getattr(model, "generation_config", None)
    if settings is not None and not settings.do_sample and (settings.temperature or settings.top_p):
        settings.do_sample = (
            True  # as shipped by some models it contradicts itself, and could not be saved
        )
    return _prepare(model, config)


def load_critic(
    config: ModelConfig,
    device: torch.device,
    bins: Bins | None = None,
    head_seed: int | None = None,
    policy: Any = None,
) -> ValueModel:
    """With the weights of `policy`, which were read a moment ago, where the critic's are the same."""
    if policy is None or not _shares_backbone(policy, config):
        return _prepare(new_value_model(config, bins=bins, head_seed=head_seed).to(device), config)
    backbone = copy.deepcopy(policy.base_model)
    backbone.packable = policy.packable
    if device.type == "cuda":
        join(backbone)  # copying tore its weights apart
    return ValueModel(backbone, bins, head_seed).to(device).eval()


def _shares_backbone(policy: Any, config: ModelConfig) -> bool:
    """Whether a critic would read what the policy has in the same class of model, prepared in the same way."""
    own_way = (
        config.lora_rank
        or config.compile
        or config.gradient_checkpointing
        or config.trust_remote_code
    )
    classes: Any = transformers.MODEL_MAPPING
    return (
        config.critic_path in (None, config.path)
        and not own_way
        and type(policy.base_model) is classes.get(type(policy.config), None)
    )


def new_policy(config: ModelConfig, *, empty: bool = False) -> Any:
    trusted = config.trust_remote_code
    model = _load(
        AutoModelForCausalLM,
        config.path,
        empty=empty,
        dtype=getattr(torch, config.dtype),
        trust_remote_code=trusted,
    )
    return (
        add_adapters(model, config, path=config.path, task="CAUSAL_LM")
        if config.lora_rank
        else model
    )


def new_value_model(
    config: ModelConfig,
    *,
    empty: bool = False,
    bins: Bins | None = None,
    head_seed: int | None = None,
) -> ValueModel:
    path, trusted = config.critic_path or config.path, config.trust_remote_code
    backbone = _load(
        AutoModel, path, empty=empty, dtype=getattr(torch, config.dtype), trust_remote_code=trusted
    )
    return ValueModel(
        add_adapters(backbone, config, path=path, task="TOKEN_CLS")
        if config.lora_rank
        else backbone,
        bins,
        head_seed,
    )


def load_sliced(
    make: Any, config: ModelConfig, ranks: ProcessGroup, count: int = 1
) -> tuple[list[Any], str]:
    """`count` models alike, sliced over the processes, and their fingerprint (which the first process knows).

    The first process alone reads the weights, in float32 into the memory beside its GPU, and hands them round one by one. No GPU ever
    holds a whole model, nor does any other process.
    """
    dtype = getattr(torch, config.dtype)
    if (
        not config.lora_rank
    ):  # what is trained is float32, and only adapters are where there are any
        config = config.model_copy(update={"dtype": "float32"})
    whole = make(config) if ranks.rank == 0 else None
    models = []
    for _ in range(count):
        with torch.device("meta"):
            models.append(make(config, empty=True))
        shard(models[-1], dtype, ranks)
    fill(models, whole, ranks)
    settings = ranks.shared(getattr(whole, "generation_config", None))
    for model in models:
        model.generation_config = settings
        reshard(_prepare(model, config))
    return models, fingerprint(whole) if whole is not None else ""


def load_reward_model(path: str, device: torch.device) -> Any:
    model = _load(AutoModelForSequenceClassification, path)
    if model.config.num_labels != 1:
        raise TelescopeError(
            f"reward model {path} has {model.config.num_labels} outputs; a reward model has one (num_labels = 1)"
        )
    return model.to(device).eval().requires_grad_(False)


def is_packable(model: Any) -> bool:
    """Whether the model takes rows without padding (see models/packed.py)."""
    return getattr(model, "packable", False)


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a response: the tokenizer's EOS and those that the generation config names."""
    settings = getattr(model, "generation_config", None) or _generation_settings(
        tokenizer.name_or_path
    )
    configured = getattr(settings, "eos_token_id", None)
    extra = (
        configured
        if isinstance(configured, list)
        else [configured]
        if configured is not None
        else []
    )
    return sorted({tokenizer.eos_token_id, *extra})


def _generation_settings(path: str) -> Any:
    """Of a model that is not loaded."""
    try:
        return transformers.GenerationConfig.from_pretrained(path)
    except OSError:
        pass
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError):  # code of its own: the tokenizer's EOS has to do
        return None


def fingerprint(model: nn.Module | None) -> str:
    """Names, shapes and a few weights of each parameter: tells one model from another, quickly."""
    if model is None:
        return "none"
    digest = hashlib.sha256()
    weights = sorted(model.named_parameters())
    flat = [weight.detach().flatten() for _, weight in weights]
    some = [
        each[:: max(1, each.numel() // 16)].bfloat16().float() for each in flat
    ]  # the same in whatever precision it was loaded
    read = torch.cat(some).cpu().split([len(each) for each in some])  # from a GPU all at once
    for (name, weight), values in zip(weights, read, strict=True):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()[:16]


def _prepare(model: Any, config: ModelConfig) -> Any:
    """A policy or a value model, as every role needs it."""
    model.eval()  # for good: dropout would make the ratio differ from 1 before anything was learned
    core = getattr(model, "backbone", model)
    core.packable = packed.enable(core, compiled=config.compile, within=partial(within, model))
    if (
        config.cuda_graphs
        and core.packable
        and core.device.type == "cuda"
        and _capturable(core.base_model, config)
    ):
        core.base_model.captured = Captured()
    layers: Any = getattr(core.base_model, "layers", ())
    if config.gradient_checkpointing:
        core.gradient_checkpointing_enable({"use_reentrant": True, "preserve_rng_state": False})
        if (
            not core.get_input_embeddings().weight.requires_grad
        ):  # re-entering is quicker, and needs an input with a gradient
            core.enable_input_require_grads()
        core.checkpointed = list(layers)
    for layer in layers if config.compile else ():
        layer.compile(dynamic=True)
    return model


def _capturable(backbone: Any, config: ModelConfig) -> bool:
    """Whether its passes may be replayed as graphs: whole, the same each time, and with weights that are not their own masters."""
    other = config.lora_rank or config.compile or config.gradient_checkpointing
    weights = list(backbone.parameters())
    plain = all(
        weight.dtype is torch.bfloat16 and not hasattr(weight, "full_tensor") for weight in weights
    )
    return not other and plain and takes_embeddings(backbone)


@contextmanager
def checkpointing(model: Any) -> Iterator[None]:
    """Within it a model with `gradient_checkpointing` forgets what its layers computed, and computes it again for the gradient."""
    layers = getattr(getattr(model, "backbone", model), "checkpointed", ())
    for layer in layers:
        layer.training = (
            True  # of the layer alone, which is what transformers asks; its dropouts stay off
        )
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _load(
    auto: Any, path: str, *, empty: bool = False, dtype: torch.dtype = torch.float32, **kwargs: Any
) -> Any:
    """`empty`: the model as its config says, without reading its weights."""
    local = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not (local / "config.json").is_file():
        what = "has no config.json" if local.is_dir() else "does not exist"
        raise TelescopeError(
            f"model folder {path} {what}: give a Hugging Face model folder or a hub name such as org/model"
        )
    source = str(local) if local.is_dir() else path
    what = "the tokenizer" if auto is AutoTokenizer else "the model"
    try:
        with quiet():
            if auto is AutoTokenizer:
                return auto.from_pretrained(source, **kwargs)
            if empty:
                return auto.from_config(
                    AutoConfig.from_pretrained(source, **kwargs), dtype=dtype, **kwargs
                )
            model, info = auto.from_pretrained(
                source, dtype=dtype, output_loading_info=True, **kwargs
            )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise TelescopeError(f"cannot load {what} from {path}: {first}") from error
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        raise TelescopeError(
            f"cannot load {what} from {path}: its files have no weights for {absent[0]}, so it would start at random"
        )
    return model
