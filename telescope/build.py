"""Puts the roles of a config together: in this process, or in the workers of a Ray cluster."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from telescope.config import Config, ModelConfig
from telescope.data import arithmetic, gym, toys
from telescope.data.files import read_rows
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError
from telescope.models import smollm
from telescope.models.fast.capture import GraphMemory
from telescope.models.fast.fuse import join_weights
from telescope.models.load import (
    fingerprint,
    is_packable,
    load_critic,
    load_policy,
    load_reward_model,
    load_tokenizer,
    stop_ids,
)
from telescope.models.parallel import Ranks
from telescope.roles.actor import Actor
from telescope.roles.critic import Critic, ZeroCritic
from telescope.roles.reference import Reference
from telescope.roles.remote import remote_reward
from telescope.roles.reward import Reward, RewardFunction, RewardModel, load_function
from telescope.roles.shaping import Shaping
from telescope.rollout.environments import ENVIRONMENTS, Search, exact_match
from telescope.rollout.sampler import Sampler, TorchSampler
from telescope.rollout.tools import Tools


@dataclass(frozen=True)
class Roles:
    """The trainer's four. On Ray the first three stand for workers, and have the same methods."""

    actor: Any
    critic: Any
    reference: Any
    reward: Reward
    origin: dict[str, Any]
    """What the checkpoints belong to: fingerprints of the weights that actor and critic started from, the reward's parts."""
    close: Callable[[], None] = lambda: None
    """Ends the processes that hold them, if they have any of their own."""
    graph_memory: GraphMemory | None = None
    """Memory of the CUDA graphs of actor and critic, if they are in this process."""


def build_roles(
    config: Config, reward: RewardFunction | Mapping[str, RewardFunction] | None = None
) -> Roles:
    """The four roles, where `config.backend` places them."""
    if config.backend == "ray":
        from telescope.scale import ray

        return ray.build_roles(config, reward)
    return build_local_roles(config, reward)


def build_local_roles(
    config: Config, reward: RewardFunction | Mapping[str, RewardFunction] | None = None
) -> Roles:
    """All four roles in this process, on one device."""
    source, device = resolve_model(config), choose_device(config.device)
    policy = load_policy(source, device)
    values = (
        load_critic(source, device, config.critic.histogram, config.head_seed, policy)
        if config.credit.by_critic
        else None
    )
    reference = policy if source.lora_rank else copy.deepcopy(policy).requires_grad_(False)
    if device.type == "cuda" and reference is not policy:
        join_weights(reference)  # the copies of joined weights are not joined
    actor = make_actor(config, policy)
    critic = ZeroCritic() if values is None else Critic(values, config)
    rewards = build_reward(config, actor.tokenizer, device, reward)
    origin = {
        "actor": fingerprint(policy),
        "critic": fingerprint(values),
        **reward_origin(config, rewards, reward),
    }
    return Roles(
        actor,
        critic,
        Reference(reference, config),
        rewards,
        origin,
        graph_memory=policy.graph_memory,
    )


def reward_origin(config: Config, rewards: Reward, given: Any) -> dict[str, Any]:
    """What a checkpoint belongs to besides its models: the reward, and the settings that decide what is trained."""
    model, credit = config.model, config.credit
    trained: dict[str, Any] = {
        "model.lora_rank": model.lora_rank,
        "model.lora_alpha": model.lora_alpha,
        "model.lora_targets": model.lora_targets,
    }
    trained["credit.estimator"] = f"one {'with' if credit.by_critic else 'without'} a critic"
    if credit.by_critic:
        bins = config.critic.histogram
        trained["critic.loss"] = f"hl_gauss with {bins}" if bins else "one without bins"
        trained["critic.head_init"] = (
            "zero" if config.head_seed is None else f"normal with seed {config.head_seed}"
        )
    return {
        "reward": list(rewards.functions),
        "reward_in_python": given is not None,
        "trained": trained,
    }


def build_actor(config: Config) -> Actor:
    return make_actor(config, load_policy(resolve_model(config), choose_device(config.device)))


def make_actor(config: Config, policy: Any, ranks: Ranks | None = None) -> Actor:
    source = resolve_model(config)
    tokenizer = load_tokenizer(source.path, trust_remote_code=source.trust_remote_code)
    tools = make_tools(config, tokenizer, ranks)
    if ranks is not None and (
        config.rollout.engine == "torch" or config.ray.samplers
    ):  # graphs cannot be captured of slices
        stop = stop_ids(policy, tokenizer) + (tools.stop if tools else [])
        sampler: Sampler = TorchSampler(
            policy, config.rollout, stop=stop, pad=tokenizer.pad_token_id
        )
    else:
        sampler = make_sampler(config, policy, tokenizer, policy.device, tools)
    return Actor(policy, tokenizer, sampler, config, ranks, tools)


def make_tools(config: Config, tokenizer: Any, ranks: Ranks | None = None) -> Tools | None:
    """The environment that rollouts talk to, if the run has one."""
    name = config.rollout.environment
    if name is None:
        return None
    kind: Any = ENVIRONMENTS.get(name) or load_function(name, "environment")[1]
    try:
        environment = (
            Search(config.rollout, toys.PASSAGES)
            if config.toy == "search"
            else kind(config.rollout)
        )
    except TelescopeError:
        raise
    except Exception as error:
        raise TelescopeError(
            f"rollout.environment = {name!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    return Tools(environment, tokenizer, config.rollout, ranks)


def make_sampler(
    config: Config, policy: Any, tokenizer: Any, device: torch.device, tools: Tools | None
) -> Sampler:
    """What writes responses: with the policy's own weights, or vLLM, which takes its first from the model's folder."""
    stop, pad = stop_ids(policy, tokenizer) + (tools.stop if tools else []), tokenizer.pad_token_id
    if config.rollout.engine == "vllm":
        from telescope.rollout.vllm import VllmSampler

        return VllmSampler(
            resolve_model(config).path,
            config,
            stop=stop,
            pad=pad,
            device=device,
            colocated=policy is not None,
        )
    if device.type == "cuda" and config.rollout.cuda_graphs and is_packable(policy):
        from telescope.rollout.engine import GraphSampler

        return GraphSampler(policy, config.rollout, stop=stop, pad=pad)
    return TorchSampler(policy, config.rollout, stop=stop, pad=pad)


def resolve_model(config: Config) -> ModelConfig:
    """The model section with the name of a model that is made here replaced by its folder."""
    builtin = partial(toys.ensure_model, config.toy) if config.toy else arithmetic.ensure_model
    made = {"builtin": builtin, "smollm2": smollm.ensure_model}
    if config.model.path not in made:
        return config.model
    return config.model.model_copy(update={"path": str(made[config.model.path]())})


def build_reward(
    config: Config,
    tokenizer: Any,
    device: torch.device,
    given: Any = None,
    model: RewardFunction | None = None,
) -> Reward:
    """`model` stands for the reward model where that lives elsewhere."""
    functions: dict[str, RewardFunction] = {}
    if isinstance(given, Mapping):
        functions |= given
    elif given is not None:
        functions[getattr(given, "__name__", "reward")] = given
    for function in functions.values():
        if not callable(function):
            raise TelescopeError(
                f"reward={function!r} is no function: give f(prompts, completions, ...); by name, set reward.functions"
            )
    for spec in config.reward.functions:
        name, function = _function(spec, config)
        if name in functions:
            raise TelescopeError(
                f"two reward functions are called {name!r}: rename one (of an address: name=https://…), parts are reported by name"
            )
        functions[name] = function
    if config.reward.model is not None:
        functions["model"] = model or make_reward_model(config, tokenizer, device)
    attention = _function(config.reward.attention, config)[1] if config.reward.attention else None
    shape = Shaping(config.reward, config.rollout.max_response_tokens)
    if functions:
        return Reward(functions, config.reward.weights, attention, shape)
    if config.toy:
        return Reward({"exact_match": exact_match}, config.reward.weights, attention, shape)
    if config.data.task:
        scorer = gym.scorer(config.data.task, config.data.options, config.data.answer)
        return Reward({"gym_score": scorer}, config.reward.weights, attention, shape)
    if config.data.files:
        raise TelescopeError(
            "data.files without a reward: set reward.functions or reward.model, or pass reward= to Trainer"
        )
    return Reward(
        arithmetic.REWARDS, {**arithmetic.WEIGHTS, **config.reward.weights}, attention, shape
    )


def make_reward_model(config: Config, tokenizer: Any, device: torch.device) -> RewardModel:
    assert config.reward.model is not None
    model = load_reward_model(config.reward.model, device)
    return RewardModel(
        model,
        load_tokenizer(config.reward.model),
        tokenizer,
        tokens=config.reward.micro_batch_tokens,
    )


def _function(spec: str, config: Config) -> tuple[str, RewardFunction]:
    return remote_reward(
        spec, timeout=config.reward.timeout, retries=config.reward.retries
    ) or load_function(spec)


def build_data(config: Config, tokenizer: Any) -> tuple[PromptSet, PromptSet | None]:
    """Training prompts, and held-out ones where there are any."""
    data, prompts = config.data, config.eval.prompts
    if data.files:
        train = PromptSet(read_rows(data.files, data.prompt_key), tokenizer, data)
        if not data.eval_files:
            return train, None
        return train, PromptSet(
            read_rows(data.eval_files, data.prompt_key)[:prompts], tokenizer, data
        )
    if data.task:
        made = gym.rows(data.task, data.options, data.size, data.instruction)
        if prompts and prompts > len(made[1]):
            raise TelescopeError(
                f"eval.prompts = {prompts}, and data.task = {data.task!r} holds {len(made[1])} problems out: use at most those"
            )
        made = made[0], made[1][:prompts]
    else:
        rows_of = partial(toys.rows, config.toy) if config.toy else arithmetic.rows
        made = (rows_of(evaluation=False), rows_of(evaluation=True)[:prompts])
    train, held_out = (
        PromptSet(rows, tokenizer, data.model_copy(update={"prompt_key": "prompt"}))
        for rows in made
    )
    return train, held_out


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TelescopeError(
            f"device = {name!r} cannot be used here ({reason}): use auto, cpu, cuda or cuda:0"
        ) from None
    return device
