"""Loads Hugging Face models, and says clearly why when it can't."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from telescope.config import Bins, ModelConfig
from telescope.errors import TelescopeError
from telescope.models.fast import packed
from telescope.models.fast.capture import GraphMemory, GraphRunner, takes_embeddings
from telescope.models.fast.fuse import join_weights
from telescope.models.fast.token_shard import share_tokens
from telescope.models.lora import add_adapters, with_own_adapters
from telescope.models.parallel import ProcessGroup, fill_shards, reshard, run_in_forward, shard
from telescope.models.quantize import quantize, quantized_layers, sample_of
from telescope.models.value import ValueModel
from telescope.models.weight_files import (
    WeightFiles,
    open_files,
    refuse_non_finite,
    with_placeholders,
    without_weights,
)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers, which logs and draws a progress bar for every file it touches."""
    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


# ---- models for one process


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """The model's tokenizer. It must have an EOS token.

    A missing pad token becomes EOS: masks hide padding, whatever its id.
    """
    tokenizer = _load(AutoTokenizer, path, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise TelescopeError(
            f"the tokenizer of {path} has no EOS token, so a response could never end: "
            "set `eos_token` in its tokenizer_config.json to the token that ends an answer"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and type(backend.model).__name__ == "BPE":
        tokenizer.clean_up_tokenization_spaces = False  # else ignored too, with a warning
    return tokenizer


def load_tokenizer_of(config: ModelConfig) -> Any:
    """The tokenizer of a config: the model's, or the one that `tokenizer_path` names."""
    path = config.tokenizer_path or config.path
    return load_tokenizer(path, trust_remote_code=config.trust_remote_code)


def load_policy(config: ModelConfig, device: torch.device, given: Any = None) -> Any:
    """The policy on `device`: `given`, or the one at `config.path`.

    Its `graph_memory` is for all models of the device.
    """
    model = new_policy(config, given=given)
    if config.quantize != "none":
        quantize(model, config.quantize, device, path=config.path)
    model.to(device)
    _check_causal(model, config.path)
    model.graph_memory = GraphMemory()
    repair_generation_config(model)
    _prepare(model, config, model.graph_memory)
    return model


def load_critic(
    config: ModelConfig,
    device: torch.device,
    bins: Bins | None = None,
    head_seed: int | None = None,
    policy: Any = None,
) -> ValueModel:
    """The critic on `device`.

    If it starts from the weights of `policy`, as that was loaded, they are not read again. With
    LoRA the frozen ones are shared; without, all are copied.
    """
    if policy is None or not _shares_backbone(policy, config):
        model = new_value_model(config, bins=bins, head_seed=head_seed)
        if config.quantize != "none":
            path = config.critic_path or config.path
            quantize(model.backbone, config.quantize, device, path=path)
        model.to(device)
        _check_causal(model.backbone, config.critic_path or config.path)
        memory = GraphMemory() if policy is None else policy.graph_memory
        _prepare(model, config, memory)
        return model
    if config.lora_rank:
        path = config.critic_path or config.path
        backbone = with_own_adapters(policy.base_model, policy, path=path, task="TOKEN_CLS")
        if config.gradient_checkpointing:
            backbone.checkpointed = list(backbone.layers)
    else:
        backbone = copy.deepcopy(policy.base_model)
        if device.type == "cuda":
            join_weights(backbone)  # the copies of joined weights are not joined
    backbone.packable = policy.packable
    return ValueModel(backbone, bins, head_seed).to(device).eval()


def _shares_backbone(policy: Any, config: ModelConfig) -> bool:
    """Whether the critic's backbone would be the same class of model from the same files."""
    special = config.compile or config.trust_remote_code
    if config.gradient_checkpointing and not config.lora_rank:
        special = True
    classes: Any = transformers.MODEL_MAPPING
    same_class = type(policy.base_model) is classes.get(type(policy.config), None)
    same_path = config.critic_path in (None, config.path)
    return same_path and same_class and not special


def new_policy(config: ModelConfig, *, empty: bool = False, given: Any = None) -> Any:
    """A causal language model, with adapters if `lora_rank` is set.

    `empty`: without reading weights. `given`: this model, which is then changed in place.
    """
    dtype = getattr(torch, config.dtype)
    if given is not None:
        model = given.to(dtype)
        _check_finite(model, "that was passed")
    else:
        model = _load(
            AutoModelForCausalLM,
            config.path,
            empty=empty,
            dtype=dtype,
            trust_remote_code=config.trust_remote_code,
        )
    if config.lora_rank:
        add_adapters(model, config, path=config.path, task="CAUSAL_LM")
    return model


def new_value_model(
    config: ModelConfig,
    *,
    empty: bool = False,
    bins: Bins | None = None,
    head_seed: int | None = None,
) -> ValueModel:
    """A value model, with adapters if `lora_rank` is set. `empty`: without reading weights."""
    path = config.critic_path or config.path
    backbone = _load(
        AutoModel,
        path,
        empty=empty,
        dtype=getattr(torch, config.dtype),
        trust_remote_code=config.trust_remote_code,
    )
    if config.lora_rank:
        add_adapters(backbone, config, path=path, task="TOKEN_CLS")
    return ValueModel(backbone, bins, head_seed)


def load_reward_model(path: str, device: torch.device) -> Any:
    """A sequence classifier with one output."""
    model = _load(AutoModelForSequenceClassification, path)
    if model.config.num_labels != 1:
        raise TelescopeError(
            f"reward model {path} has {model.config.num_labels} outputs; "
            "a reward model has one (num_labels = 1)"
        )
    return model.to(device).eval().requires_grad_(False)


# ---- models sharded over several processes


def load_sharded(
    make: Callable[..., Any], config: ModelConfig, ranks: ProcessGroup, count: int = 1
) -> tuple[list[Any], str]:
    """`count` equal models, sharded over the ranks, and their checksum (on rank 0; else empty).

    `make` is `new_policy` or `new_value_model`.
    Each rank reads its rows from the safetensors files, and rank 0 sends out what no file has. If
    a rank cannot read the files so (see `weight_files`), rank 0 reads the model whole into host
    memory and sends its weights out one by one. No GPU ever holds a full model.
    """
    dtype = getattr(torch, config.dtype)
    if not config.lora_rank:
        # What is trained is float32; with adapters, only they are trained.
        config = config.model_copy(update={"dtype": "float32"})
    with torch.device("meta"):
        models = [make(config, empty=True) for _ in range(count)]
    full = None
    with open_files(models[0]) as found:
        for model in models:
            shard(model, dtype, ranks)
        anyone_cannot = ranks.max(int(found is None))
        files = None if anyone_cannot else found
        if ranks.rank == 0:
            full = make(config, empty=files is not None)
        fill_shards(models, full, ranks, files)
        checksum = fingerprint(full, files) if full is not None else ""
    settings = ranks.broadcast(getattr(full, "generation_config", None))
    for model in models:
        model.generation_config = settings
        _prepare(model, config, memory=None)  # graphs cannot be captured of shards
        if ranks.sequence is not None:
            share_tokens(model, ranks.sequence)
        reshard(model)
    return models, checksum


# ---- what a loaded model is asked


def repair_generation_config(model: Any) -> None:
    """Some models ship generation settings that contradict themselves and could not be saved."""
    settings = getattr(model, "generation_config", None)
    if settings is not None and not settings.do_sample and (settings.temperature or settings.top_p):
        settings.do_sample = True


def is_packable(model: Any) -> bool:
    """Whether the model takes rows without padding (see models/fast/packed.py)."""
    return bool(getattr(model, "packable", False))


def stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a response: the tokenizer's EOS, and those of the generation config."""
    settings = getattr(model, "generation_config", None)
    if not settings:
        settings = _generation_settings(tokenizer.name_or_path)
    configured = getattr(settings, "eos_token_id", None)
    if configured is None:
        configured = []
    elif not isinstance(configured, list):
        configured = [configured]
    return sorted({tokenizer.eos_token_id, *configured})


def _generation_settings(path: str) -> Any:
    """The generation settings of a model that is not loaded; None if they cannot be read."""
    try:
        return transformers.GenerationConfig.from_pretrained(path)
    except OSError:
        pass
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError):
        return None  # the model has code of its own: the tokenizer's EOS must do


def context_length(*models: Any) -> int | None:
    """Positions that all of these models, or configs of models, have; None if none says so."""
    limits = []
    for model in models:
        settings = getattr(model, "config", model).get_text_config()
        limit = getattr(settings, "max_position_embeddings", None)
        if limit is not None and limit > 0:
            limits.append(limit)
    return min(limits, default=None)


def saved_context_length(config: ModelConfig) -> int | None:
    """The same of models that this process does not load."""
    paths = {config.path, config.critic_path or config.path}
    trusted = config.trust_remote_code
    return context_length(*[_load(AutoConfig, path, trust_remote_code=trusted) for path in paths])


def fingerprint(model: nn.Module | None, files: WeightFiles | None = None) -> str:
    """Checksum of names, shapes and a few weights of each parameter: tells models apart quickly.

    Weights that are in `files` are read there.
    """
    if model is None:
        return "none"
    digest = hashlib.sha256()
    found = {}
    for name, weight in model.named_parameters():
        if files is not None and name in files:
            sample = files.sample(name, weight.dtype)
        else:
            sample = sample_of(weight.detach())
        found[name] = (tuple(weight.shape), sample)
    for name, layer in quantized_layers(model):  # the weights before they were rounded
        found[f"{name}.weight"] = (layer.shape, layer.sample)
    names = sorted(found)
    samples = [found[name][1] for name in names]
    sizes = [len(sample) for sample in samples]
    on_host = torch.cat(samples).cpu().split(sizes)  # one copy from the GPU
    for name, values in zip(names, on_host, strict=True):
        shape, _ = found[name]
        digest.update(f"{name}{shape}".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def checkpointing(model: Any) -> Iterator[None]:
    """Switches gradient checkpointing on, for a model that was loaded with it.

    Its layers forget what they computed, and compute it again in the backward.
    """
    layers = getattr(getattr(model, "backbone", model), "checkpointed", ())
    for layer in layers:
        # transformers checks the flag of the layer itself; its dropouts stay off.
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


# ---- helpers


def _prepare(model: Any, config: ModelConfig, memory: GraphMemory | None) -> None:
    """Makes a policy or a value model ready: packing, CUDA graphs, checkpointing, compilation.

    Without `memory` there are no CUDA graphs.
    """
    model.eval()  # for good: with dropout the ratio would differ from 1 before the first update
    core = getattr(model, "backbone", model)
    run = partial(run_in_forward, model)
    core.packable = packed.enable(core, compiled=config.compile, run=run)
    wants_graphs = config.cuda_graphs and core.packable and core.device.type == "cuda"
    if memory is not None and wants_graphs and _is_capturable(core.base_model, config):
        core.base_model.graph_runner = GraphRunner(memory)
    layers: Any = getattr(core.base_model, "layers", ())
    if config.gradient_checkpointing:
        with warnings.catch_warnings():  # transformers before 5.23 has no other name for it
            warnings.simplefilter("ignore", FutureWarning)
            core.gradient_checkpointing_enable({"use_reentrant": True, "preserve_rng_state": False})
        if not core.get_input_embeddings().weight.requires_grad:
            # Re-entrant checkpointing is faster, but needs an input with a gradient.
            core.enable_input_require_grads()
        core.checkpointed = list(layers)
    if config.compile:
        for layer in layers:
            layer.compile(dynamic=True)


def _is_capturable(backbone: Any, config: ModelConfig) -> bool:
    """Whether passes may be replayed as CUDA graphs.

    Weights must be full tensors with float32 masters beside them, and every pass must be the same.
    """
    if config.lora_rank or config.compile or config.gradient_checkpointing:
        return False
    for weight in backbone.parameters():
        if weight.dtype is not torch.bfloat16 or hasattr(weight, "full_tensor"):
            return False
    return takes_embeddings(backbone)


def _load(
    auto: Any,
    path: str,
    *,
    empty: bool = False,
    dtype: torch.dtype = torch.float32,
    trust_remote_code: bool = False,
) -> Any:
    """Loads by one of transformers' Auto classes.

    `empty`: the model of the config, without weights. Its buffers have values.
    """
    local = Path(path).expanduser()
    looks_local = (
        local.is_dir()
        or path.startswith((".", "/", "~"))
        or path.count("/") > 1
        or path.endswith("/")
    )
    needed = "tokenizer_config.json" if auto is AutoTokenizer else "config.json"
    has_files = any((local / name).is_file() for name in (needed, "config.json"))
    if looks_local and not has_files:
        problem = f"has no {needed}" if local.is_dir() else "does not exist"
        raise TelescopeError(
            f"model folder {path} {problem}: "
            "give a Hugging Face model folder or a hub name such as org/model"
        )
    if "/" not in path and not local.is_dir() and not _is_cached(path):
        # Only the hub's oldest models have no owner. Asking for another takes minutes to fail.
        raise TelescopeError(
            f"there is no model folder {path}, and a name on the hub has an owner: "
            "give a folder, or a name such as org/model"
        )
    source = str(local) if local.is_dir() else path
    what = "the tokenizer" if auto is AutoTokenizer else "the model"
    kwargs = {"trust_remote_code": trust_remote_code}  # without it transformers asks the terminal
    try:
        with quiet():
            if auto in (AutoTokenizer, AutoConfig):
                return auto.from_pretrained(source, **kwargs)
            if empty:
                config = AutoConfig.from_pretrained(source, **kwargs)
                with without_weights():
                    model = auto.from_config(config, dtype=dtype, **kwargs)
                if torch.get_default_device().type != "meta":
                    with_placeholders(model)
                if model.can_generate():
                    with suppress(OSError):
                        settings = transformers.GenerationConfig.from_pretrained(source)
                        model.generation_config = settings
                return model
            model, info = auto.from_pretrained(
                source, dtype=dtype, output_loading_info=True, **kwargs
            )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise TelescopeError(f"cannot load {what} from {path}: {_reason(error, auto)}") from error
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        raise TelescopeError(
            f"cannot load {what} from {path}: its files have no weights for {absent[0]}, "
            "so it would start at random"
        )
    _check_finite(model, path)
    return model


def _is_cached(name: str) -> bool:
    """Whether a model of the hub is on this disk."""
    try:
        return bool(try_to_load_from_cache(name, "config.json"))
    except HFValidationError:  # no model can have this name
        return False


def _reason(error: Exception, auto: Any) -> str:
    """The first line of transformers' error, or what it means."""
    text = str(error).strip()
    if auto is AutoModelForCausalLM and text.startswith("Unrecognized configuration class"):
        kind = text.rpartition("configuration_")[2].partition(".")[0].partition("'")[0]
        return f"{kind} is no causal language model, which writes one token after the other"
    if "instantiate the backend tokenizer" in text:
        return (
            "it has no tokenizer files, such as tokenizer.json: save the tokenizer there too, "
            "or set model.tokenizer_path"
        )
    return text.splitlines()[0]


@torch.no_grad()
def _check_causal(model: Any, path: str) -> None:
    """Refuses a model, such as BERT, whose outputs at a token depend on the tokens after it."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(6, device=model.device)[None] % vocabulary  # [1, 6]
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % vocabulary
    was_training = model.training
    model.eval()
    outputs, changed = (model(input_ids=row, use_cache=False)[0][0, :-1] for row in (ids, other))
    model.train(was_training)
    limit = 0.02 if outputs.dtype is torch.bfloat16 else 1e-4
    if (outputs - changed).float().norm() > limit * outputs.float().norm():
        raise TelescopeError(
            f"{path} is no causal language model: what it says of a token depends on the tokens "
            "after it; give a decoder, such as Llama or Qwen"
        )


def _check_finite(model: nn.Module, path: str) -> None:
    """Refuses weights that are not finite: every number made with them would be NaN."""
    for name, weight in model.named_parameters():
        refuse_non_finite(weight.detach(), name, path)
