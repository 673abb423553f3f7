"""Environments of the `verifiers` library: making one, and its tasks as rows of data."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from itertools import islice
from typing import Any

from telescope.config import Config
from telescope.errors import TelescopeError, pip_install

TASK = "verifiers_task"
"""Column with the place of a row's task in the taskset."""


def make_environment(config: Config) -> Any:
    """The environment that `rollout.environment = "verifiers:ID"` names.

    Its agent runs on this machine in the `null` harness (a chat loop) unless
    `rollout.environment_options` says otherwise.
    """
    if importlib.util.find_spec("verifiers") is None:
        raise TelescopeError(
            f"rollout.environment = {config.rollout.environment!r} needs verifiers: "
            f"{pip_install('verifiers')}"
        )
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    defaults = {
        "taskset": {"id": config.verifiers_id},
        "agent": {
            "harness": {"id": "null"},
            "runtime": {"type": "subprocess"},
            "max_turns": config.rollout.max_turns,
        },
    }
    settings = _merged(defaults, config.rollout.environment_options)
    try:
        return load_environment(resolve_env_config(settings))
    except Exception as error:  # a plugin may raise anything
        details = " ".join(str(error).split())[:300]
        raise TelescopeError(
            f"rollout.environment = {config.rollout.environment!r} cannot be made: "
            f"{type(error).__name__}: {details}"
        ) from error


def rows(config: Config) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training rows and held-out rows: the first tasks of the taskset, at most a fifth of them."""
    tasks = list(islice(make_environment(config).taskset, config.data.size))
    made = [{"prompt": _messages(task.data), TASK: place} for place, task in enumerate(tasks)]
    held_out = min(config.eval.prompts or 100, len(made) // 5)
    return made[held_out:], made[:held_out]


def _messages(data: Any) -> list[dict[str, str]]:
    """What the policy is shown first, as chat messages."""
    messages = []
    if data.system_prompt:
        messages.append({"role": "system", "content": str(data.system_prompt)})
    if isinstance(data.prompt, str):
        messages.append({"role": "user", "content": data.prompt})
    else:
        for message in data.prompt or []:
            messages.append({"role": message.role, "content": str(message.content or "")})
    return messages or [{"role": "user", "content": data.name or "begin"}]


def _merged(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **options}
    for key in defaults.keys() & options.keys():
        if isinstance(defaults[key], Mapping) and isinstance(options[key], Mapping):
            merged[key] = _merged(defaults[key], options[key])
    return merged
