"""Calls reward functions on a batch: their arguments, threads, time limit, what they return."""

from __future__ import annotations

import asyncio
import copy
import difflib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telescope.batch import Response, TokenBatch
from telescope.errors import TelescopeError
from telescope.rewards.background import Background
from telescope.roles.functions import RewardFunction


@dataclass(frozen=True)
class Returned:
    """What one reward function returned for a batch."""

    scores: list[Any]
    """One entry per response: a number, a list with one per token, or None: does not apply."""
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    """Extra metrics by name, one entry per response."""


@dataclass(frozen=True)
class Caller:
    """How reward functions are called.

    An async function runs in a thread with an event loop of its own, beside the others. The others
    are called one after another, or with `parallel` or `seconds` in threads too.
    """

    parallel: bool = False
    seconds: float | None = None
    """Seconds until a function that has not returned is given up."""

    def call(
        self,
        functions: Mapping[str, RewardFunction],
        batch: TokenBatch,
        responses: Sequence[Response],
        *,
        step: int = 0,
        evaluation: bool = False,
    ) -> dict[str, Returned]:
        """What each function says about `responses` to the batch's prompts."""
        nothing = [None] * len(batch)  # where no environment reports anything
        moment = {"step": step, "evaluation": evaluation, "states": nothing}
        calls: dict[str, Callable[[], Returned]] = {}
        for name, function in functions.items():
            arguments = _arguments(name, function, batch, responses, moment)
            calls[name] = functools.partial(_call, name, function, arguments, len(batch))
        threads: dict[str, Background[Returned]] = {}
        for name, function in functions.items():
            if self.parallel or self.seconds is not None or _is_async(function):
                threads[name] = Background(calls[name])
                if not (self.parallel or _is_async(function)):
                    self._wait(name, threads[name])
        found = {name: call() for name, call in calls.items() if name not in threads}
        found |= {name: self._wait(name, thread) for name, thread in threads.items()}
        return {name: found[name] for name in functions}

    def _wait(self, name: str, thread: Background[Returned]) -> Returned:
        try:
            return thread.result(self.seconds)
        except TimeoutError:
            raise TelescopeError(
                f"reward function {name!r} has not returned after {self.seconds:g} s "
                "(reward.function_timeout): make it faster, or raise the limit and continue "
                "with --resume"
            ) from None


def _is_async(function: RewardFunction) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 -- of an object with async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _call(
    name: str, function: RewardFunction, arguments: Mapping[str, Any], count: int
) -> Returned:
    metrics: Mapping[str, Any] = {}
    try:
        returned: Any = function(**arguments)
        if inspect.isawaitable(returned):
            # In a thread: this one may have a running event loop, as in a notebook.
            returned = Background(functools.partial(asyncio.run, _result_of(returned))).result()
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
            returned, metrics = returned
        if hasattr(returned, "tolist"):
            returned = returned.tolist()
        is_list = isinstance(returned, Iterable) and not isinstance(returned, Mapping | str | bytes)
        scores = list(returned) if is_list else None
    except (TelescopeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # even sys.exit(): a run does not end with a score missing
        message = _message_of(error)
        raise TelescopeError(
            f"reward function {name!r} raised {type(error).__name__}: {message}{_place_of(error)}"
        ) from error
    if scores is None or len(scores) != count:
        found = f"{returned!r}" if scores is None else f"{len(scores)} scores"
        raise TelescopeError(
            f"reward function {name!r} returned {found} for {count} responses: "
            "return one score for each"
        )
    read = {str(key): _read_metric(name, key, value, count) for key, value in metrics.items()}
    return Returned(scores, read)


def _read_metric(name: str, key: Any, value: Any, count: int) -> list[float | None]:
    """A metric of a reward function for each response; a single number is that of all of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    values = list(value) if isinstance(value, list | tuple) else [value] * count
    try:
        if len(values) != count:
            raise ValueError
        return [None if number is None else float(number) for number in values]
    except (TypeError, ValueError):
        raise TelescopeError(
            f"reward function {name!r} returned the metric {key!r} = {str(value)[:60]} for {count} "
            "responses: give one number, or one for each"
        ) from None


def _message_of(error: BaseException) -> str:
    """The error's text in one line; an odd one may have none."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return "(no text)"


def _place_of(error: BaseException) -> str:
    """File and line that raised the error."""
    if error.__traceback__ is None:
        return ""
    frame = inspect.getinnerframes(error.__traceback__)[-1]
    return f" ({Path(frame.filename).name}, line {frame.lineno})"


def _arguments(
    name: str,
    function: RewardFunction,
    batch: TokenBatch,
    responses: Sequence[Response],
    moment: Mapping[str, Any],
) -> dict[str, Any]:
    """The columns that the function takes, by name; of `moment` only what it names itself."""
    columns = _columns(batch, responses)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise TelescopeError(
            f"reward function {name!r} has no signature to read: wrap it in a Python function"
        ) from None
    taken = {parameter.name for parameter in parameters}
    asked = {key: value for key, value in moment.items() if key in taken and key not in columns}
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        is_required = by_name and parameter.default is parameter.empty
        if is_required and parameter.name not in columns and parameter.name not in asked:
            raise TelescopeError(
                f"reward function {name!r} asks for `{parameter.name}`; "
                f"the data has {', '.join(sorted(columns))}{_renamed(parameter.name, columns)}"
            )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return {**columns, **asked}
    return {**{key: column for key, column in columns.items() if key in taken}, **asked}


_ELSEWHERE = {
    "completion_ids": "response_ids",  # TRL
    "completion": "completions",
    "responses": "completions",
    "solution_str": "completions",  # verl: one text, where ours is a list
    "queries": "prompts",  # OpenRLHF
    "prompt": "prompts",
    "labels": "answer",
    "ground_truth": "reward_model",
    "trainer_state": "step",
}
"""Other trainers' names of what a reward function gets, and ours."""


def _renamed(name: str, columns: Mapping[str, Any]) -> str:
    """What to write instead of a name that the data does not have."""
    ours = _ELSEWHERE.get(name)
    if ours in columns or ours == "step":
        return f": did you mean `{ours}`?"
    close = difflib.get_close_matches(name, columns, 1, 0.75)
    return f": did you mean `{close[0]}`?" if close else ""


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
    if any(response.state is not None for response in responses):
        columns["states"] = [_copied(response.state) for response in responses]
    return columns


def _copied(value: Any) -> Any:
    """A copy of what can be changed; text and numbers cannot."""
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return value
    if type(value) is dict:  # most data is: this is five times as fast as deepcopy
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is list:
        return [_copied(item) for item in value]
    return copy.deepcopy(value)
