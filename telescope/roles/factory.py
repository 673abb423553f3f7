"""Makes one role, or a part of it, from a config: in this process or in a worker on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from telescope.config import Config, ModelConfig
from telescope.data import arithmetic, toys
from telescope.errors import TelescopeError
from telescope.models import smollm
from telescope.models.load import (
    is_packable,
    load_reward_model,
    load_tokenizer,
    load_tokenizer_of,
    stop_ids,
)
from telescope.models.parallel import Ranks
from telescope.roles.actor import Actor
from telescope.roles.functions import load_function
from telescope.roles.reward_model import RewardModel
from telescope.rollout.environments import ENVIRONMENTS, Environment, Search
from telescope.rollout.episodes import Episodes
from telescope.rollout.sampler import Sampler, TorchSampler
from telescope.rollout.tools import Tools
from telescope.rollout.vllm import Team, VllmSampler

_RAISES_THRESHOLD = 31 * 2**20
"""Bytes of a block that raises glibc's threshold. Blocks past 32 MiB do not."""


def keep_freed_memory() -> None:
    """Lets glibc keep what tensors on the CPU free, for the next tensors.

    By default it may hand freed activations back to the system in every backward, and then every
    new page is a page fault. How much it keeps is twice the largest block that was mapped from the
    system and freed, so one such block is freed here. It is never written, so it takes no memory.
    """
    torch.empty(_RAISES_THRESHOLD, dtype=torch.uint8)


def choose_device(name: str) -> torch.device:
    """The torch device of a `device` setting."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        usable = "auto, cpu, cuda or cuda:0" if torch.cuda.is_available() else "auto or cpu"
        raise TelescopeError(
            f"device = {name!r} cannot be used here ({reason}): use {usable}"
        ) from None
    return device


def resolve_model(config: Config) -> ModelConfig:
    """The model section that PPO starts from: the warm-started model, if there is a warm start."""
    if config.warm_start.files:
        return config.model.model_copy(update={"path": str(warm_start_folder(config))})
    return start_model(config)


def warm_start_folder(config: Config) -> Path:
    """Where the run keeps its warm-started model."""
    return config.run_dir / "warm_start"


def start_model(config: Config) -> ModelConfig:
    """The model section, with the name of a built-in model replaced by its folder."""
    if config.model.path == "builtin":
        folder = toys.ensure_model(config.toy) if config.toy else arithmetic.model_folder()
    elif config.model.path == "smollm2":
        folder = smollm.ensure_model()
    else:
        return config.model
    return config.model.model_copy(update={"path": str(folder)})


def reference_model(config: Config) -> ModelConfig:
    """The model section of a reference that `model.reference_path` names: it has no adapters."""
    own = {"path": config.model.reference_path, "lora_rank": 0}
    model = config.model.model_copy(update=own)
    return start_model(config.model_copy(update={"model": model}))


def check_vocabulary(reference: Any, tokenizer: Any, config: Config) -> None:
    """Refuses a reference that does not know every token of the policy."""
    known = reference.config.get_text_config().vocab_size
    if config.model.reference_path and known < len(tokenizer):
        raise TelescopeError(
            f"model.reference_path = {config.model.reference_path!r} knows {known} tokens, and "
            f"model.path = {config.model.path!r} writes {len(tokenizer)}: "
            "use a model with the same tokenizer"
        )


def _check_eos(policy: Any, tokenizer: Any, config: Config) -> None:
    """Refuses a policy that cannot write the tokenizer's EOS."""
    known = policy.config.get_text_config().vocab_size
    if tokenizer.eos_token_id >= known:
        raise TelescopeError(
            f"model.path = {config.model.path!r} knows {known} tokens, and the tokenizer's EOS is "
            f"number {tokenizer.eos_token_id}: no response could end; give the model's tokenizer"
        )


def make_actor(config: Config, policy: Any, ranks: Ranks | None = None) -> Actor:
    """The actor of a policy that is loaded, with its tokenizer, sampler and tools."""
    source = resolve_model(config)
    tokenizer = show_tools(load_tokenizer_of(source), config)
    _check_eos(policy, tokenizer, config)
    tools = make_tools(config, tokenizer, ranks)
    sampler: Sampler
    # A sharded policy cannot be captured in CUDA graphs.
    if ranks is not None and (config.rollout.engine == "torch" or config.ray.samplers):
        stop = _stop_tokens(policy, tokenizer, tools)
        sampler = TorchSampler(policy, config.rollout, stop=stop, pad=tokenizer.pad_token_id)
    else:
        sampler = make_sampler(config, policy, tokenizer, policy.device, tools)
    return Actor(policy, tokenizer, sampler, config, ranks, tools)


def make_sampler(
    config: Config,
    policy: Any,
    tokenizer: Any,
    device: torch.device,
    tools: Tools | None,
    team: Team | None = None,
) -> Sampler:
    """What writes responses: the policy's own weights, or vLLM.

    vLLM takes its first weights from the model's folder. It is told that it shares the GPU with
    training if there is a `policy`, and its weights with the other workers of a `team`.
    """
    stop = _stop_tokens(policy, tokenizer, tools)
    pad = tokenizer.pad_token_id
    if config.rollout.engine == "vllm":
        return VllmSampler(
            resolve_model(config).path,
            config,
            stop=stop,
            pad=pad,
            device=device,
            colocated=policy is not None,
            team=team,
        )
    if device.type == "cuda" and config.rollout.cuda_graphs and is_packable(policy):
        from telescope.rollout.engine import GraphSampler

        return GraphSampler(policy, config.rollout, stop=stop, pad=pad)
    return TorchSampler(policy, config.rollout, stop=stop, pad=pad)


def _stop_tokens(policy: Any, tokenizer: Any, tools: Tools | None) -> list[int]:
    """Tokens that end sampling: EOS and the like, and ends of tool calls."""
    return [*stop_ids(policy, tokenizer), *(tools.stop if tools else [])]


def make_tools(config: Config, tokenizer: Any, ranks: Ranks | None = None) -> Tools | None:
    """The environment that answers the policy, if the run has one."""
    name = config.rollout.environment
    if name is None:
        return None
    if config.verifiers_id is not None:
        return Episodes(config, tokenizer, resolve_model(config).path)
    environment: Environment
    try:
        if config.toy == "search":
            environment = Search(config.rollout, toys.PASSAGES)
        elif name in ENVIRONMENTS:
            environment = ENVIRONMENTS[name](config.rollout)
        else:
            kind: Any = load_function(name, "environment")[1]
            environment = kind(config.rollout)
    except (TelescopeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # even sys.exit()
        raise TelescopeError(
            f"rollout.environment = {name!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(environment, Environment):
        raise TelescopeError(
            f"rollout.environment = {name!r} is a {type(environment).__name__}: "
            "name one class that inherits from telescope.rollout.environments.Environment"
        )
    return Tools(environment, tokenizer, config.rollout, ranks)


def show_tools(tokenizer: Any, config: Config) -> Any:
    """The tokenizer, whose chat template now shows the tools of the run's environment."""
    name = config.rollout.environment
    if name is not None and name not in ENVIRONMENTS and config.verifiers_id is None:
        kind = load_function(name, "environment")[1]
        tokenizer.shown_tools = tuple(getattr(kind, "tools", ()))
    return tokenizer


def make_reward_model(config: Config, tokenizer: Any, device: torch.device) -> RewardModel:
    """The reward model that `reward.model` names; `tokenizer` is the actor's."""
    assert config.reward.model is not None
    return RewardModel(
        load_reward_model(config.reward.model, device),
        load_tokenizer(config.reward.model),
        tokenizer,
        tokens=config.reward.micro_batch_tokens,
    )
