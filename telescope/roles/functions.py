"""Reward functions: what they are, loading them by name, reading a score."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from telescope.algorithms.definitions.registry import load_file, load_module
from telescope.errors import TelescopeError
from telescope.rewards.builtin import BUILT_IN

RewardFunction = Callable[..., Any]
"""f(prompts, completions, **columns) -> one score per sample; it may be async.

A score is a number, a list with one number for each response token, or None: the function does not
apply to this sample. `(scores, metrics)` returns extra metrics too: a number each, or one per
sample. `columns` are the data's own columns and
- `prompt_ids`, `response_ids`: the token ids;
- `last_turns`: what the policy wrote after the last reply of a tool. Without tools these are the
  completions; with tools, completions also hold what the tools wrote;
- `states`: what the environment's `report` returned, if it returns something.

A function gets only the arguments that it takes. Two more it gets only if it names them: `step`,
the number of the training step (0 before training), and `evaluation`, whether the responses are
held-out ones.
"""


def load_function(spec: str, what: str = "reward function") -> tuple[str, RewardFunction]:
    """Loads 'module:function' or 'path/to/file.py:function'; returns its name and the function.

    `what` is what errors call it.
    """
    source, _, name = spec.rpartition(":")
    if not source:
        raise TelescopeError(
            f"{what} {spec!r}: write it as module:function or path/to/file.py:function"
            + _or_built_in(spec, what)
        )
    if not name.isidentifier():
        raise TelescopeError(
            f"{what} {spec!r}: {name!r} is not the name of a function; write it as "
            "module:function or path/to/file.py:function, and a server with its http://"
        )
    is_file = source.endswith(".py")
    path = Path(source).expanduser()
    if is_file and not path.is_file():
        raise TelescopeError(f"{what} {spec!r}: there is no file {path}")
    try:
        module = load_file(path) if is_file else load_module(source)
    except (TelescopeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # even sys.exit()
        raise TelescopeError(
            f"{what} {spec!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, found in vars(module).items() if callable(found)]
        close = difflib.get_close_matches(name, functions, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise TelescopeError(f"{what} {spec!r}: {source} has no {what.split()[-1]} {name!r}{meant}")
    return name, function


def _or_built_in(spec: str, what: str) -> str:
    if what != "reward function":
        return ""
    close = difflib.get_close_matches(spec.rpartition("=")[2], BUILT_IN, 1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f", or name a built-in one: {', '.join(BUILT_IN)}{meant}"


def read_score(name: str, score: Any, where: str) -> float | list[float]:
    """Turns a score into a finite float, or a list of them; `where` names it in errors."""
    if hasattr(score, "tolist"):
        score = score.tolist()
    is_list = hasattr(score, "__iter__")
    try:
        if isinstance(score, (str, bytes)):
            raise TypeError
        numbers = [float(number) for number in score] if is_list else [float(score)]
    except (TypeError, ValueError, OverflowError):
        raise TelescopeError(
            f"reward function {name!r} returned {score!r} for {where}: "
            "return a finite number, or one per token"
        ) from None
    largest = torch.finfo(torch.float32).max
    if not all(abs(number) <= largest for number in numbers):  # NaN compares as False
        raise TelescopeError(
            f"reward function {name!r} returned {score!r} for {where}: return a finite number"
        )
    return numbers if is_list else numbers[0]
