"""Puts the roles of a config together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from telescope.algorithms.definitions.trust import trust
from telescope.config import Config, named_code
from telescope.data import arithmetic, gym
from telescope.data.rng import kept_rng
from telescope.errors import TelescopeError
from telescope.models.fast.capture import GraphMemory
from telescope.models.fast.fuse import join_weights
from telescope.models.load import (
    context_length,
    fingerprint,
    load_critic,
    load_policy,
    load_tokenizer_of,
    saved_context_length,
)
from telescope.rewards.builtin import builtin_reward
from telescope.rewards.remote import remote_reward
from telescope.roles.actor import Actor
from telescope.roles.calling import Caller
from telescope.roles.critic import Critic, ZeroCritic
from telescope.roles.factory import (
    check_vocabulary,
    choose_device,
    keep_freed_memory,
    make_actor,
    make_reward_model,
    make_tools,
    reference_model,
    resolve_model,
    show_tools,
    start_model,
)
from telescope.roles.functions import RewardFunction, load_function
from telescope.roles.informed import InformedCritic
from telescope.roles.protocols import ActorRole, CriticRole, ReferenceRole
from telescope.roles.reference import Reference
from telescope.roles.reward import Reward
from telescope.roles.shaping import Shaping
from telescope.rollout.environments import exact_match
from telescope.scale.cluster import connect, with_absolute_paths
from telescope.scale.group import WorkerGroup
from telescope.scale.roles import RayActor, RayCritic, RayReference, RayRewardModel

GivenReward = RewardFunction | Mapping[str, RewardFunction] | Sequence[RewardFunction] | None
"""What a script passes as `reward=`: a function, several, or None for the config's."""


@dataclass(frozen=True)
class Roles:
    """The trainer's four roles, in this process or on Ray."""

    actor: ActorRole
    critic: CriticRole
    reference: ReferenceRole
    reward: Reward
    origin: dict[str, Any]
    """What checkpoints belong to: the weights that training started from, and the reward."""
    close: Callable[[], None] = lambda: None
    """Ends the processes that hold the roles, if they have any of their own."""
    graph_memory: GraphMemory | None = None
    """Memory of the CUDA graphs of actor and critic, if they are in this process."""
    positions: int | None = None
    """Most tokens of prompt and response together that the models take; None: no limit is known."""


@dataclass(frozen=True)
class LocalRoles(Roles):
    """Actor, critic, reference and reward in this process."""

    actor: Actor
    critic: Critic | ZeroCritic | InformedCritic
    reference: Reference


def build_roles(config: Config, reward: GivenReward = None, model: Any = None) -> Roles:
    """Actor, critic, reference and reward, where `config.backend` places them.

    `model` is the policy, if a script passed one. Workers on Ray read it from `config.model.path`.
    """
    trust(*named_code(config.model_dump()))  # this user runs it, so `eval` may import it later
    if config.backend == "ray":
        return build_ray_roles(config, reward)
    return build_local_roles(config, reward, model)


def build_without_models(config: Config, given: GivenReward = None) -> tuple[Any, Reward]:
    """Tokenizer and reward, without any weights.

    Refuses a reward and an environment that cannot be made.
    """
    tokenizer = show_tools(load_tokenizer_of(start_model(config)), config)
    reward = build_reward(config, tokenizer, torch.device("cpu"), given, model=_unused_model)
    if config.verifiers_id is None:
        make_tools(config, tokenizer)
    return tokenizer, reward


def _unused_model(*_: Any, **__: Any) -> list[float]:
    """Stands for a reward model that is not needed."""
    raise AssertionError("nothing is scored here")


def build_local_roles(config: Config, reward: GivenReward = None, model: Any = None) -> LocalRoles:
    """All four roles in this process, on one device."""
    source = resolve_model(config)
    device = choose_device(config.device)
    keep_freed_memory()
    policy = load_policy(source, device, model)
    value_model = None
    if config.credit.by_critic:
        bins = config.critic.histogram
        value_model = load_critic(source, device, bins, config.head_seed, policy)
    frozen = policy
    if source.reference_path:
        frozen = load_policy(reference_model(config), device).requires_grad_(False)
    elif not source.lora_rank:
        frozen = copy.deepcopy(policy).requires_grad_(False)
        if device.type == "cuda":
            join_weights(frozen)  # deepcopy separates joined weights
    actor = make_actor(config, policy)
    check_vocabulary(frozen, actor.tokenizer, config)
    rewards = build_reward(config, actor.tokenizer, device, reward)
    weights = {"actor": fingerprint(policy), "critic": fingerprint(value_model)}
    origin = {**weights, **reward_origin(config, rewards, reward)}
    positions = context_length(policy, *([value_model.backbone] if value_model else []))
    critic: Critic | ZeroCritic | InformedCritic = ZeroCritic()
    if value_model is not None:
        critic = Critic(value_model, config)
        if config.critic.reads is not None:
            critic = InformedCritic(critic, config.critic.reads, actor.tokenizer, positions)
    return LocalRoles(
        actor,
        critic,
        Reference(frozen, config),
        rewards,
        origin,
        graph_memory=policy.graph_memory,
        positions=positions,
    )


def build_ray_roles(config: Config, reward: GivenReward = None) -> Roles:
    """The roles in workers of a Ray cluster; the reward functions stay in this process."""
    source = resolve_model(config)
    tokenizer = show_tools(load_tokenizer_of(source), config)
    ray = config.ray
    reward_model = RayRewardModel() if ray.reward_workers else None
    rewards = build_reward(config, tokenizer, torch.device("cpu"), reward, reward_model)
    config = with_absolute_paths(config)
    has_critic = config.credit.by_critic
    # Ray draws ports and names from Python's generator, more or fewer of them each time; a reward
    # that has seeded it must not notice.
    with kept_rng(), ExitStack() as groups:
        gpus = connect(config)

        def start(size: int, *roles: str) -> WorkerGroup:
            group = WorkerGroup(config, size, roles, gpus=gpus)
            groups.callback(group.close)
            return group

        shared = ["critic"] if has_critic and not ray.critic_workers else []
        actors = start(ray.workers, "actor", "reference", *shared)
        critics = start(ray.critic_workers, "critic") if ray.critic_workers else actors
        samplers = start(ray.samplers, "sampler") if ray.samplers else None
        actor = RayActor(actors, tokenizer, samplers)
        if reward_model is not None:
            reward_model.group = start(ray.reward_workers, "reward")
        close = groups.pop_all().close  # nothing failed: the roles own the groups now
    weights = {"critic": fingerprint(None), **actors.origin, **critics.origin}
    positions = saved_context_length(source)
    critic: CriticRole = RayCritic(critics) if has_critic else ZeroCritic()
    if config.critic.reads is not None:
        critic = InformedCritic(critic, config.critic.reads, tokenizer, positions)
    return Roles(
        actor,
        critic,
        RayReference(actors),
        rewards,
        {**weights, **reward_origin(config, rewards, reward)},
        close,
        positions=positions,
    )


def build_actor(config: Config) -> Actor:
    """The actor alone, in this process."""
    return make_actor(config, load_policy(resolve_model(config), choose_device(config.device)))


def reward_origin(config: Config, rewards: Reward, given: GivenReward) -> dict[str, Any]:
    """What a checkpoint belongs to besides its weights.

    That is the reward, and the settings that decide what is trained.
    """
    model = config.model
    trained: dict[str, Any] = {
        "model.lora_rank": model.lora_rank,
        "model.lora_alpha": model.lora_alpha,
        "model.lora_targets": model.lora_targets,
        "model.quantize": model.quantize,
        "actor.optimizer": config.actor.optimizer,
    }
    if config.credit.by_critic:
        bins = config.critic.histogram
        seed = config.head_seed
        trained["credit.estimator"] = "one with a critic"
        trained["critic.loss"] = f"{config.critic.loss} with {bins}" if bins else "one without bins"
        trained["critic.optimizer"] = config.critic.optimizer
        trained["critic.reads"] = config.critic.reads or "the prompt alone"
        trained["critic.head_init"] = "zero" if seed is None else f"normal with seed {seed}"
    else:
        trained["credit.estimator"] = "one without a critic"
    return {
        "reward": list(rewards.functions),
        "reward_in_python": given is not None,
        "trained": trained,
    }


def build_reward(
    config: Config,
    tokenizer: Any,
    device: torch.device,
    given: GivenReward = None,
    model: RewardFunction | None = None,
) -> Reward:
    """The reward of a script, or the config's, or the built-in task's.

    `model` stands for the reward model where that lives in other processes.
    """
    functions = _given_functions(given)
    for spec in config.reward.functions:
        name, function = _configured_function(spec, config)
        if name in functions:
            raise TelescopeError(
                f"two reward functions are called {name!r}: rename one "
                "(of an address: name=https://…), parts are reported by name"
            )
        functions[name] = function
    named = [spec.partition("=")[0] for spec in config.reward_functions]
    for name in config.reward.options:
        if name not in named:
            raise TelescopeError(
                f"reward.options names {name!r}; reward.functions has {', '.join(functions)}"
            )
    if config.reward.model is not None:
        functions["model"] = model or make_reward_model(config, tokenizer, device)
    weights = config.reward.weights
    if not functions:
        functions, default_weights = _default_functions(config)
        weights = {**default_weights, **weights}
    attention = None
    if config.reward.attention:
        _, attention = _configured_function(config.reward.attention, config)
    shaping = Shaping(config.reward, config.rollout.max_response_tokens)
    caller = Caller(config.reward.parallel, config.reward.function_timeout)
    every_part = config.credit.definition.needs.score_parts
    return Reward(functions, weights, attention, shaping, caller, every_part=every_part)


def _given_functions(given: GivenReward) -> dict[str, RewardFunction]:
    """The functions that a script passed, by name."""
    if given is None:
        return {}
    functions: dict[str, RewardFunction] = {}
    several: Any = given if isinstance(given, list | tuple) else [given]
    if isinstance(given, Mapping):
        functions, several = dict(given), []
    for one in several:
        name = getattr(one, "__name__", "reward")
        if name in functions:
            raise TelescopeError(
                f"two reward functions are called {name!r}: give them by name, "
                "e.g. reward={'first': f, 'second': g}"
            )
        functions[name] = one
    for function in functions.values():
        if not callable(function):
            raise TelescopeError(
                f"reward={function!r} is no function: give f(prompts, completions, ...); "
                "by name, set reward.functions"
            )
    return functions


def _configured_function(spec: str, config: Config) -> tuple[str, RewardFunction]:
    """The name and function of an address, of a built-in reward, or of module:function."""
    reward = config.reward
    remote = remote_reward(
        spec, timeout=reward.timeout, retries=reward.retries, headers=reward.headers
    )
    common = {"timeout": reward.timeout, "retries": reward.retries}
    return remote or builtin_reward(spec, reward.options, **common) or load_function(spec)


def _default_functions(
    config: Config,
) -> tuple[dict[str, RewardFunction], Mapping[str, float]]:
    """Functions and weights of the task that the run's data comes from."""
    if config.toy:
        return {"exact_match": exact_match}, {}
    data = config.data
    if data.task:
        scorer = gym.scorer(
            data.task, data.options, data.answer, partial_credit=data.partial_credit
        )
        return {"gym_score": scorer}, {}
    if ":" in (config.rollout.environment or ""):
        return {}, {}  # the environment pays
    if data.files:
        raise TelescopeError(
            "data.files without a reward: set reward.functions or reward.model, "
            "or pass reward= to Trainer"
        )
    return dict(arithmetic.REWARDS), arithmetic.WEIGHTS
