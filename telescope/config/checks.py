"""Checks that concern several settings at once. Each raises ValueError with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from telescope.algorithms.definitions import ESTIMATORS
from telescope.algorithms.definitions.mismatch import REJECTIONS
from telescope.algorithms.definitions.policy import on_sampler
from telescope.config.sections import Config

_OF_CRITIC = (
    "critic.loss",
    "critic.head_init",
    "critic.reads",
    "critic_warmup",
    "model.critic_path",
    "credit.bootstrap_truncated",
)


def check(config: Config) -> None:
    _check_name(config)
    _check_batches(config)
    _check_schedules(config)
    _check_lora(config)
    _check_memory(config)
    _check_data(config)
    _check_warm_start(config)
    _check_ray(config)
    _check_rollout(config)
    _check_reward(config)
    _check_eval(config)
    _check_environment(config)
    _check_credit(config)
    _check_old_log_probs(config)
    _check_anchor(config)
    _refuse_unused(config)


def _check_name(config: Config) -> None:
    if config.name.startswith("/") or ".." in config.name.split("/"):
        raise ValueError(
            f"name = {config.name!r} is not under `dir`: give a name, and the folder in `dir`"
        )


def _check_batches(config: Config) -> None:
    rows = config.rollout.batch_size * config.rollout.n
    row_tokens = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    for role, section in (("actor", config.actor), ("critic", config.critic)):
        if section.minibatches > rows:
            raise ValueError(
                f"{role}.minibatches = {section.minibatches}, but a step has only {rows} "
                f"responses (rollout.batch_size × rollout.n): use at most {rows}"
            )
        own_data = config.data.files or config.data.task
        if own_data and section.micro_batch_tokens < row_tokens:
            raise ValueError(
                f"{role}.micro_batch_tokens = {section.micro_batch_tokens} cannot hold one row of "
                f"data.max_prompt_tokens + rollout.max_response_tokens = {row_tokens}: raise it"
            )


def _check_schedules(config: Config) -> None:
    for role, section in (("actor", config.actor), ("critic", config.critic)):
        if section.lr_min and section.schedule == "constant":
            raise ValueError(
                f"{role}.lr_min = {section.lr_min:g} does nothing with {role}.schedule = "
                "'constant': use linear or cosine"
            )
        if section.lr_min > section.lr:
            raise ValueError(
                f"{role}.lr_min = {section.lr_min:g} is more than {role}.lr = {section.lr:g}: "
                "the learning rate falls to it, so use at most that"
            )


def _check_lora(config: Config) -> None:
    if config.model.lora_rank:
        return
    for name in ("lora_alpha", "lora_targets"):
        if getattr(config.model, name):
            raise ValueError(
                f"model.{name} without model.lora_rank: set the rank of the adapters, e.g. 16"
            )


def _check_memory(config: Config) -> None:
    model = config.model
    if model.quantize != "none":
        chosen = f"model.quantize = {model.quantize!r}"
        if not model.lora_rank:
            raise ValueError(
                f"{chosen} freezes the weights, so adapters must be trained: "
                "set model.lora_rank, e.g. 16"
            )
        if model.compile:
            raise ValueError(f"{chosen} and model.compile cannot be combined: turn one off")
    if model.offload_reference and model.lora_rank and not model.reference_path:
        raise ValueError(
            "model.offload_reference does nothing with model.lora_rank: the reference is the "
            "actor without its adapters; leave it out"
        )
    if config.backend == "ray":
        for name in one_process_settings(config):
            raise ValueError(
                f"{name} = {_get(config, name)} is for one process, and backend = 'ray' shards "
                "over several: leave it out, or set backend = 'local'"
            )


def one_process_settings(config: Config) -> list[str]:
    """Settings of this config that a sharded model cannot have."""
    names = ["model.quantize", "model.offload_reference"]
    for role in ("actor", "critic"):
        names += [f"{role}.optimizer", f"{role}.offload_optimizer"]
    return changed(config, names)


def _check_data(config: Config) -> None:
    data = config.data
    if data.task is not None and data.files:
        raise ValueError(
            "data.task makes its problems and data.files names others: leave one of them out"
        )
    for name in ("seed", "size"):
        if name in data.options:
            raise ValueError(
                f"data.options.{name} is fixed, so that a run always has the same problems: "
                "use `data.size`"
            )
    if data.task is not None and data.prompt_key != "prompt":
        raise ValueError(
            f"data.prompt_key = {data.prompt_key!r} names a column of data.files, "
            "and data.task has none"
        )
    if data.eval_files and not data.files:
        raise ValueError("data.eval_files without data.files: name the training files too")
    if data.task is None:
        names = ("options", "size", "instruction", "answer", "partial_credit")
        for name in changed(config, names, "data"):
            if name == "data.size" and config.verifiers_id is not None:
                continue
            raise ValueError(
                f"{name} does nothing without data.task, the reasoning-gym task that it is of"
            )


def _check_warm_start(config: Config) -> None:
    own = config.warm_start
    if own.files and config.backend == "ray":
        raise ValueError(
            "warm_start.files runs in one process, and backend = 'ray' has several: warm-start "
            "with backend = 'local' and steps = 0, then set model.path to the run's warm_start "
            "folder"
        )
    if not own.files:
        for name in changed(config, type(own).model_fields, "warm_start"):
            raise ValueError(f"{name} does nothing without warm_start.files")


def _check_ray(config: Config) -> None:
    ray = config.ray
    for name in ("workers", "critic_workers"):
        count = getattr(ray, name)
        if ray.fsdp_size and count % ray.fsdp_size:
            raise ValueError(
                f"ray.{name} = {count} is not a multiple of ray.fsdp_size = {ray.fsdp_size}: "
                "every copy of a model needs all its shards"
            )
        if count % ray.sequence_parallel_size:
            raise ValueError(
                f"ray.{name} = {count} is not a multiple of ray.sequence_parallel_size = "
                f"{ray.sequence_parallel_size}: that many workers share the same rows"
            )
    sizes = (ray.sequence_parallel_size, ray.fsdp_size or 1)
    if max(sizes) % min(sizes):
        raise ValueError(
            f"ray.sequence_parallel_size = {sizes[0]} and ray.fsdp_size = {sizes[1]}: "
            "the larger must be a multiple of the smaller, so that groups do not straddle"
        )
    if config.backend == "local":
        names = ("samplers", "critic_workers", "reward_workers", "workers_per_gpu")
        for name in changed(config, (*names, "sequence_parallel_size"), "ray"):
            raise ValueError(f"{name} = {_get(config, name)} needs backend = 'ray'")
    if ray.critic_workers and not config.credit.by_critic:
        raise ValueError(
            f"credit.estimator = '{config.credit.estimator}' has no critic: "
            "leave out ray.critic_workers"
        )
    if ray.reward_workers and config.reward.model is None:
        raise ValueError(
            f"ray.reward_workers = {ray.reward_workers} would hold reward.model, "
            "and there is none: name one, or use 0"
        )


def _check_rollout(config: Config) -> None:
    rollout = config.rollout
    shared_by = rollout.tensor_parallel_size
    if shared_by > 1:
        chosen = f"rollout.tensor_parallel_size = {shared_by}"
        if rollout.engine != "vllm":
            raise ValueError(
                f"{chosen} is for vLLM, and rollout.engine = {rollout.engine!r}: "
                "set rollout.engine = 'vllm', or leave it out"
            )
        if not config.ray.samplers or config.ray.samplers % shared_by:
            raise ValueError(
                f"{chosen} workers hold one policy together, and ray.samplers = "
                f"{config.ray.samplers} is no multiple of it: "
                f"set ray.samplers = {shared_by} or 2 × {shared_by}, …"
            )
        if config.ray.workers_per_gpu > 1:
            raise ValueError(
                f"{chosen} needs a GPU for each worker, and ray.workers_per_gpu = "
                f"{config.ray.workers_per_gpu}: leave one of them out"
            )
    if rollout.one_step_off_policy and not (config.backend == "ray" and config.ray.samplers):
        raise ValueError(
            "rollout.one_step_off_policy needs workers that only sample: "
            "set backend = 'ray' and ray.samplers to 1 or more"
        )
    if rollout.dynamic_sampling and rollout.n == 1:
        raise ValueError(
            "rollout.dynamic_sampling compares the responses of one prompt, "
            "and rollout.n = 1: use at least 2"
        )
    if rollout.dynamic_sampling and rollout.one_step_off_policy:
        raise ValueError(
            "rollout.dynamic_sampling asks for further prompts after a step is scored, "
            "rollout.one_step_off_policy samples before that: turn one off"
        )


def _check_reward(config: Config) -> None:
    reward = config.reward
    limit = config.rollout.max_response_tokens
    if reward.overlong_tokens > limit:
        raise ValueError(
            f"reward.overlong_tokens = {reward.overlong_tokens} is more than "
            f"rollout.max_response_tokens = {limit}: use fewer"
        )
    if not reward.overlong_tokens and reward.overlong_penalty != 1.0:
        raise ValueError(
            "reward.overlong_penalty does nothing without reward.overlong_tokens: "
            "say over how many tokens it grows"
        )


def _check_eval(config: Config) -> None:
    for name, pattern in (("eval", config.eval.answer), ("data", config.data.answer)):
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(
                f"{name}.answer = {pattern!r} is not a regular expression: {error}"
            ) from None
    n = config.eval.n
    k = config.eval.k
    if n is not None and n < k:
        raise ValueError(f"eval.n = {n} samples are too few for eval.k = {k}: use at least {k}")
    if not k and (n is not None or config.eval.answer is not None):
        raise ValueError("eval.n and eval.answer do nothing without eval.k, e.g. 4")
    if config.eval.best is None:
        for name in changed(config, ("best_mode", "patience"), "eval"):
            raise ValueError(f"{name} does nothing without eval.best, e.g. eval/greedy_accuracy")
    elif not config.eval.every:
        raise ValueError("eval.best compares evaluations: set eval.every, e.g. 10")
    for name, chosen in config.eval.sets.items():
        if re.fullmatch(r"[\w-]+", name) is None or name in ("greedy_accuracy", "greedy_part"):
            raise ValueError(
                f"eval.sets: {name!r} becomes a part of metric names: "
                "use letters, digits, _ and -, and no name that a metric has"
            )
        if chosen.weights and not chosen.functions:
            raise ValueError(f"eval.sets.{name}.weights does nothing without its functions")


def _check_environment(config: Config) -> None:
    rollout = config.rollout
    kind = rollout.environment
    if kind is not None and kind not in ("calculator", "search") and ":" not in kind:
        raise ValueError(
            f"rollout.environment = {kind!r}: "
            "use calculator, search, module:Class, file.py:Class or none"
        )
    has_corpus = kind is not None and kind != "calculator"  # a user's class may read anything
    if config.verifiers_id is not None and config.backend == "ray":
        raise ValueError(
            f"rollout.environment = {kind!r} plays its episodes in one process: "
            "set backend = 'local'"
        )
    if config.verifiers_id is not None and config.data.files:
        raise ValueError(f"rollout.environment = {kind!r} has its own data: leave out data.files")
    unread = [] if kind is not None else ["max_turns", "tool_seconds"]
    unread += [] if has_corpus else ["corpus", "passages"]
    unread += [] if config.verifiers_id is not None else ["environment_options"]
    for name in changed(config, unread, "rollout"):
        raise ValueError(
            f"{name} = {_get(config, name)} does nothing with "
            f"rollout.environment = {kind or 'none'!r}"
        )
    if kind == "search" and rollout.corpus is None and not config.toy:
        raise ValueError(
            "rollout.environment = 'search' needs rollout.corpus, the passages to search"
        )


def _check_credit(config: Config) -> None:
    credit = config.credit
    needs = credit.definition.needs
    chosen = f"credit.estimator = '{credit.estimator}'"
    if credit.kl_target is not None and credit.kl_coef == 0:
        raise ValueError(
            "credit.kl_target needs credit.kl_coef > 0: a coefficient of 0 cannot adapt"
        )
    if config.actor.entropy_target is not None and config.actor.entropy_coef == 0:
        raise ValueError(
            "actor.entropy_target needs actor.entropy_coef > 0: the weight of the bonus where the "
            "entropy is 0"
        )
    for name in ("credit.kl_coef", "actor.kl_loss_coef"):
        if credit.kl_steps != "all" and _get(config, name):
            raise ValueError(
                f"credit.kl_steps = '{credit.kl_steps}', but {name} = {_get(config, name)} "
                f"uses the KL in every step: set {name} = 0, or credit.kl_steps = 'all'"
            )
    if needs.groups and config.rollout.n == 1:
        raise ValueError(
            f"{chosen} compares the responses of one prompt, and rollout.n = 1: use at least 2"
        )
    if needs.attention and config.reward.attention is None:
        raise ValueError(
            f"{chosen} needs reward.attention, the function that gives each token its weight"
        )
    if needs.score_parts and credit.kl_coef:
        raise ValueError(
            f"{chosen} compares the parts of the score, where credit.kl_coef has no place: "
            "set it to 0, and use actor.kl_loss_coef"
        )
    reward = config.reward
    changes_sum = reward.normalise or reward.clip is not None or reward.scale != 1 or reward.shift
    if needs.score_parts and changes_sum:
        raise ValueError(
            f"{chosen} compares the parts of the score; "
            "reward.scale, shift, normalise and clip change only the sum"
        )


def _check_old_log_probs(config: Config) -> None:
    actor = config.actor
    if actor.old_log_probs != "sampler":
        return
    others = {
        "actor.importance": actor.importance != "off",
        "actor.reject": actor.reject != "off",
        "actor.reject_outlier": actor.reject_outlier is not None,
        "rollout.one_step_off_policy": config.rollout.one_step_off_policy,
        "credit.estimator": config.credit.definition.needs.sum_pi_squared,
    }
    for name, needs_forward in others.items():
        if needs_forward:
            raise ValueError(
                f"{name} = {_get(config, name)} needs the trainer's own π_old: "
                "set actor.old_log_probs = 'auto'"
            )


def _check_anchor(config: Config) -> None:
    actor = config.actor
    if on_sampler(actor) and actor.importance != "off":
        raise ValueError(
            "actor.anchor = 'sampler' corrects for the sampler in the ratio already, and "
            f"actor.importance = {actor.importance!r} would do so again: leave one out"
        )


def _refuse_unused(config: Config) -> None:
    """Refuses settings that nothing would read: they are misunderstandings."""
    with_critic = [name for name, found in ESTIMATORS.built_in.items() if found.needs.critic]
    with_attention = [name for name, found in ESTIMATORS.built_in.items() if found.needs.attention]
    by_ratio = [name for name, found in REJECTIONS.items() if found.estimate == "k1"]
    needs = config.credit.definition.needs
    actor = config.actor
    if not needs.critic:
        _refuse_changed(config, _OF_CRITIC, "credit.estimator", with_critic)
    if not needs.attention:
        _refuse_changed(config, ["reward.attention"], "credit.estimator", with_attention)
    if actor.reject not in by_ratio:
        _refuse_changed(config, ["actor.reject_low"], "actor.reject", by_ratio)
    if actor.reject == "off":
        _refuse_changed(config, ["actor.reject_high"], "actor.reject", REJECTIONS)
    if actor.importance == "off":
        names = ("actor.importance_low", "actor.importance_mode")
        _refuse_changed(config, names, "actor.importance", ["token", "sequence"])


def _refuse_changed(
    config: Config, names: Iterable[str], choice: str, owners: Iterable[str]
) -> None:
    for name in changed(config, names):
        raise ValueError(
            f"{name} = {_get(config, name)} does nothing with {choice} = "
            f"{_get(config, choice)!r}: it belongs to {', '.join(owners)}"
        )


def changed(config: Config, names: Iterable[str], section: str = "") -> list[str]:
    """Those settings, by dotted key, that have another value than their default."""
    keys = [f"{section}.{name}" if section else name for name in names]
    return [key for key in keys if _get(config, key) != default_of(config, key)]


def default_of(config: Config, key: str) -> Any:
    """The default of a setting, also of one that the chosen algorithm has."""
    section, _, name = key.rpartition(".")
    owner = getattr(config, section) if section else config
    return type(owner).model_fields[name].default


def _get(config: Config, key: str) -> Any:
    section, _, name = key.rpartition(".")
    owner = getattr(config, section) if section else config
    return getattr(owner, name)
