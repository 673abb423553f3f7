"""Reward functions: loading them by name, calling them on a batch, reading what they return."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from telescope.batch import Response, TokenBatch
from telescope.errors import TelescopeError

RewardFunction = Callable[..., Sequence[float] | Sequence[Sequence[float]]]
"""f(prompts, completions, **columns) -> one float per sample, or one list of floats per sample.

A list has one float for each response token. `columns` are the data's own columns and
- `prompt_ids`, `response_ids`: the token ids;
- `last_turns`: what the policy wrote after the last reply of a tool. Without tools these are the
  completions; with tools, completions also hold what the tools wrote.

A function gets only the arguments that it takes.
"""


def load_function(spec: str, what: str = "reward function") -> tuple[str, RewardFunction]:
    """Loads 'module:function' or 'path/to/file.py:function'; returns its name and the function.

    `what` is what errors call it.
    """
    source, _, name = spec.rpartition(":")
    if not source:
        raise TelescopeError(
            f"{what} {spec!r}: write it as module:function or path/to/file.py:function"
        )
    is_file = source.endswith(".py")
    path = Path(source).expanduser()
    if is_file and not path.is_file():
        raise TelescopeError(f"{what} {spec!r}: there is no file {path}")
    try:
        module = _import_file(path) if is_file else _import_module(source)
    except (TelescopeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # even sys.exit()
        raise TelescopeError(
            f"{what} {spec!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TelescopeError(f"{what} {spec!r}: {source} has no {what.split()[-1]} {name!r}")
    return name, function


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"telescope_reward_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look the module up there
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, "")  # a module in the working folder is found too
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove("")


def call_function(
    name: str, function: RewardFunction, batch: TokenBatch, responses: Sequence[Response]
) -> list[Any]:
    """Calls a reward function on `responses` to the batch's prompts; one entry for each."""
    arguments = _arguments(name, function, batch, responses)
    try:
        returned: Any = function(**arguments)
        if hasattr(returned, "tolist"):
            returned = returned.tolist()
        scores = list(returned) if isinstance(returned, Iterable) else None
    except (TelescopeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # even sys.exit(): a run does not end with a score missing
        message = " ".join(str(error).split())
        raise TelescopeError(
            f"reward function {name!r} raised {type(error).__name__}: {message}{_place_of(error)}"
        ) from error
    if scores is None or len(scores) != len(batch):
        found = f"{returned!r}" if scores is None else f"{len(scores)} scores"
        raise TelescopeError(
            f"reward function {name!r} returned {found} for {len(batch)} responses: "
            "return one score for each"
        )
    return scores


def _place_of(error: BaseException) -> str:
    """File and line that raised the error."""
    if error.__traceback__ is None:
        return ""
    frame = inspect.getinnerframes(error.__traceback__)[-1]
    return f" ({Path(frame.filename).name}, line {frame.lineno})"


def _arguments(
    name: str, function: RewardFunction, batch: TokenBatch, responses: Sequence[Response]
) -> dict[str, Sequence[Any]]:
    """The columns that the function takes, by name."""
    columns = _columns(batch, responses)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise TelescopeError(
            f"reward function {name!r} has no signature to read: wrap it in a Python function"
        ) from None
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        is_required = by_name and parameter.default is parameter.empty
        if is_required and parameter.name not in columns:
            raise TelescopeError(
                f"reward function {name!r} asks for `{parameter.name}`; "
                f"the data has {', '.join(sorted(columns))}"
            )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return columns
    taken = {parameter.name for parameter in parameters}
    return {key: column for key, column in columns.items() if key in taken}


def _columns(batch: TokenBatch, responses: Sequence[Response]) -> dict[str, Sequence[Any]]:
    """Everything that a reward function may ask for.

    Lists and other objects are copies: what a function does to them reaches neither the other
    functions nor the ledger.
    """
    columns: dict[str, Sequence[Any]] = {}
    for row in batch.info:
        for key in row.data:
            if key not in columns:
                columns[key] = [_copied(other.data.get(key)) for other in batch.info]
    columns["prompts"] = [row.prompt for row in batch.info]
    columns["completions"] = [response.text for response in responses]
    columns["prompt_ids"] = batch.prompt_ids()
    columns["response_ids"] = [list(response.ids) for response in responses]
    columns["last_turns"] = [response.final_text for response in responses]
    return columns


def _copied(value: Any) -> Any:
    """A copy of what can be changed; text and numbers cannot."""
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return value
    return copy.deepcopy(value)


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
