"""The code that settings name. Whoever writes them decides what is imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from telescope.algorithms.definitions.trust import MODEL_CODE, TABLE, is_trusted
from telescope.errors import TelescopeError

DEFINITIONS = ("credit.estimator", "actor.loss", "critic.loss")
FUNCTIONS = (
    "reward.functions",
    "reward.attention",
    "rollout.environment",
    "callbacks",
    "eval.sets.*.functions",
)
TABLES = ("reward.options", "reward.headers", "rollout.environment_options")
"""They name servers, variables of the environment that are sent there, and how code is run."""
OTHERS = ("data.task", "ray.address")
"""Some scorers of reasoning-gym evaluate an answer as Python. A Ray cluster can run anything."""
MODELS = ("model.path", "model.critic_path", "model.reference_path", "model.tokenizer_path")


def named_code(data: Mapping[str, Any], *, functions: bool = True) -> dict[str, str]:
    """Every piece of code that these settings name, with the setting that names it.

    Without `functions`, only what loading the models needs.
    """
    found: dict[str, str] = {}
    for setting in DEFINITIONS + (FUNCTIONS if functions else ()):
        for key, table, name in places_of(setting, data):
            value = table[name]
            for spec in value if isinstance(value, list) else [value]:
                if isinstance(spec, str) and ":" in spec:
                    found[spec] = key
    for key in (*TABLES, *OTHERS) if functions else ():
        table = _at(data, key)
        if table and table != "none":
            found[TABLE + json.dumps([key, table], sort_keys=True, default=str)] = key
    if _at(data, "model.trust_remote_code"):
        for key in MODELS:
            path = _at(data, key)
            if isinstance(path, str) and path != "none":
                found[MODEL_CODE + path] = "model.trust_remote_code"
    return found


def check_trusted(
    recipe: Path, data: Mapping[str, Any], given: Sequence[str], *, functions: bool = True
) -> None:
    """Refuses the config.toml of a run if it names code that this user has not trained with.

    `given` are settings of the command line: they replace what the file says.
    """
    for spec, key in named_code(data, functions=functions).items():
        if key not in given and not is_trusted(spec):
            shown = spec.partition("?")[0].removeprefix(MODEL_CODE)
            if key in OTHERS:
                shown = _at(data, key)
            elif spec.startswith(TABLE):  # headers may hold a key
                shown = "{…}"
            raise TelescopeError(
                f"{recipe} names code that you have not trained with as it is now ({key} = "
                f"{shown!r}), so it was not run: if you trust this run, add --trust"
            )


def places_of(setting: str, data: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Where a setting stands: its key, its table, and its name in it; "*" is any name."""
    first, _, rest = setting.partition(".")
    if not isinstance(data, Mapping):
        return
    for name in [*data] if first == "*" else [first]:
        if rest and name in data:
            yield from places_of(rest, data[name], f"{prefix}{name}.")
        elif name in data:
            yield f"{prefix}{name}", data, name


def _at(data: Mapping[str, Any], setting: str) -> Any:
    return next((table[name] for _, table, name in places_of(setting, data)), None)
