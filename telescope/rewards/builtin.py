"""The rewards that a recipe can name without any code: their names, and what makes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from telescope.errors import TelescopeError
from telescope.rewards import terms
from telescope.rewards.judge import Judge
from telescope.rewards.maths import MathVerify
from telescope.rewards.programs import Python

BUILT_IN: dict[str, Callable[..., Callable[..., Any]]] = {
    "exact": terms.exact,
    "regex": terms.regex,
    "json_schema": terms.json_schema,
    "format": terms.format_,
    "length": terms.length,
    "repetition": terms.repetition,
    "math_verify": MathVerify,
    "python": Python,
    "judge": Judge,
}


def builtin_reward(
    spec: str, options: Mapping[str, Mapping[str, Any]], **common: Any
) -> tuple[str, Callable[..., Any]] | None:
    """Name and function of 'regex' or 'name=regex'; None if it names no built-in reward.

    `options` are those of each name. `common` ones go to the rewards that have them.
    """
    found = re.fullmatch(r"(?:(\w+)=)?(\w+)", spec)
    if not found or found[2] not in BUILT_IN:
        return None
    name = found[1] or found[2]
    make = BUILT_IN[found[2]]
    known = inspect.signature(make).parameters
    given = {key: value for key, value in common.items() if key in known}
    own = options.get(name, {})
    for key in given.keys() & own.keys():
        raise TelescopeError(f"reward.options.{name}.{key} is a setting: set reward.{key}")
    try:
        return name, make(**given, **own)
    except TelescopeError as error:  # it names the kind: regex, or here short=regex
        raise TelescopeError(f"{name}={error}" if found[1] else error) from error
    except TypeError as error:
        names = ", ".join(key for key in known if key not in common)
        raise TelescopeError(
            f"reward.options.{name}: {str(error).partition(') ')[2] or error}; "
            f"{found[2]} has {names}"
        ) from None
