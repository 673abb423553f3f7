"""All four roles in this process, on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from telescope.config import Config, ModelConfig
from telescope.errors import TelescopeError
from telescope.models import smollm
from telescope.models.fuse import join
from telescope.models.load import (
    fingerprint,
    is_packable,
    load_critic,
    load_policy,
    load_reward_model,
    load_tokenizer,
    stop_ids,
)
from telescope.models.parallel import Ranks, shard
from telescope.roles.actor import Actor
from telescope.roles.critic import Critic, ZeroCritic
from telescope.roles.reference import Reference
from telescope.roles.reward import Reward, RewardFunction, RewardModel, load_function
from telescope.rollout.sampler import TorchSampler
from telescope.tasks import PromptSet, arithmetic
from telescope.tasks.files import read_rows


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


def build_roles(config: Config, reward: RewardFunction | Mapping[str, RewardFunction] | None = None) -> Roles:
    models = build_models(config)
    rewards = build_reward(config, models.actor.tokenizer, models.actor.device, reward)
    origin = {**models.origin, "reward": list(rewards.functions), "reward_in_python": reward is not None}
    return Roles(models.actor, models.critic, models.reference, rewards, origin)


@dataclass(frozen=True)
class Models:
    """The roles that are models."""

    actor: Actor
    critic: Critic | ZeroCritic
    reference: Reference
    origin: dict[str, str]


def build_models(config: Config, ranks: Ranks | None = None) -> Models:
    """Actor, critic and reference; with `ranks` they are sliced over those processes."""
    dtype = getattr(torch, config.model.dtype)
    if ranks is not None:  # what is sliced are float32 weights; `shard` sees to the precision of what they compute
        config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": "float32"})})
    source = resolve_model(config)
    policy, device = load_policy(source, choose_device(config.device)), choose_device(config.device)
    critic, reference = load_critic(source, device) if config.credit.by_critic else None, copy.deepcopy(policy)
    if device.type == "cuda" and ranks is None:
        join(reference)  # copying tore its weights apart
    origin = {"actor": fingerprint(policy), "critic": "zeros" if critic is None else fingerprint(critic)}
    if ranks is not None:
        for model in (policy, reference) if critic is None else (policy, critic, reference):
            shard(model, dtype)
    values = ZeroCritic(ranks) if critic is None else Critic(critic, config, ranks)
    return Models(make_actor(config, policy, ranks), values, Reference(reference, config, ranks), origin)


def build_actor(config: Config) -> Actor:
    return make_actor(config, load_policy(resolve_model(config), choose_device(config.device)))


def make_actor(config: Config, policy: Any, ranks: Ranks | None = None) -> Actor:
    source = resolve_model(config)
    tokenizer = load_tokenizer(source.path, trust_remote_code=source.trust_remote_code)
    kind: type[TorchSampler] = TorchSampler
    if policy.device.type == "cuda" and config.rollout.cuda_graphs and is_packable(policy) and ranks is None:
        from telescope.rollout.engine import GraphSampler

        kind = GraphSampler
    sampler = kind(policy, config.rollout, stop=stop_ids(policy, tokenizer), pad=tokenizer.pad_token_id)
    return Actor(policy, tokenizer, sampler, config, ranks)


def resolve_model(config: Config) -> ModelConfig:
    """The model section with the name of a model that is made here replaced by its folder."""
    made = {"builtin": arithmetic.ensure_model, "smollm2": smollm.ensure_model}
    if config.model.path not in made:
        return config.model
    return config.model.model_copy(update={"path": str(made[config.model.path]())})


def build_reward(config: Config, tokenizer: Any, device: torch.device, given: Any = None) -> Reward:
    functions: dict[str, RewardFunction] = {}
    if isinstance(given, Mapping):
        functions |= given
    elif given is not None:
        functions[getattr(given, "__name__", "reward")] = given
    for spec in config.reward.functions:
        name, function = load_function(spec)
        if name in functions:
            raise TelescopeError(f"two reward functions are called {name!r}: rename one, parts are reported by name")
        functions[name] = function
    if config.reward.model is not None:
        model = load_reward_model(config.reward.model, device)
        functions["model"] = RewardModel(model, load_tokenizer(config.reward.model), tokenizer)
    attention = load_function(config.reward.attention)[1] if config.reward.attention else None
    if functions:
        return Reward(functions, config.reward.weights, attention)
    if config.data.files:
        raise TelescopeError("data.files without a reward: set reward.functions or reward.model, or pass reward= to Trainer")
    return Reward(arithmetic.REWARDS, {**arithmetic.WEIGHTS, **config.reward.weights}, attention)


def build_data(config: Config, tokenizer: Any) -> tuple[PromptSet, PromptSet | None]:
    """Training prompts, and held-out ones where there are any."""
    if not config.data.files:
        sets = (arithmetic.rows(evaluation=False), arithmetic.rows(evaluation=True))
        train, held_out = (PromptSet(rows, tokenizer, config.data.model_copy(update={"prompt_key": "prompt"})) for rows in sets)
        return train, held_out
    train = PromptSet(read_rows(config.data.files, config.data.prompt_key), tokenizer, config.data)
    if not config.data.eval_files:
        return train, None
    return train, PromptSet(read_rows(config.data.eval_files, config.data.prompt_key), tokenizer, config.data)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TelescopeError(f"device = {name!r} cannot be used here ({reason}): use auto, cpu, cuda or cuda:0") from None
    return device
