"""Callbacks: functions that a run calls at its events."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from telescope.errors import TelescopeError
from telescope.roles.functions import load_function

if TYPE_CHECKING:
    from telescope.trainer import Trainer

EventName = Literal["start", "step", "evaluate", "save", "end"]
Request = Literal["stop", "evaluate", "save"]
_LOGGED = ("step", "evaluate")
"""Events whose metrics are written to metrics.jsonl after the callbacks."""


@dataclass(frozen=True)
class Event:
    """What a callback gets.

    | name | when | metrics |
    |---|---|---|
    | start | models and data are loaded; nothing has been trained since | none |
    | step | a training step is done | those of the step |
    | evaluate | an evaluation is done, also that before the first step | those of the evaluation |
    | save | a checkpoint is on disk | none |
    | end | the run is over or was stopped, and is saved | none |
    """

    name: EventName
    trainer: Trainer
    metrics: dict[str, float]
    """Numbers that a callback adds here at `step` or `evaluate` are logged with the others."""
    requests: dict[Request, str] = field(repr=False)
    """What callbacks have asked for and the trainer has not done yet; of stop, why."""

    @property
    def step(self) -> int:
        """Training steps that are done."""
        return self.trainer.step

    def stop(self, reason: str = "a callback asked for it") -> None:
        """Ends the run after this step, with an evaluation and a checkpoint as at its end."""
        self.requests["stop"] = reason

    def evaluate(self) -> None:
        """Evaluates after this step."""
        self.requests["evaluate"] = ""

    def save(self) -> None:
        """Writes a checkpoint after this step."""
        self.requests["save"] = ""


Callback = Callable[[Event], Any]
"""A function, or an object that can be called. What it returns is ignored."""


class Callbacks:
    """Calls every callback at every event, in order, and keeps what they ask for."""

    def __init__(self, callbacks: Sequence[Callback | str], named: Sequence[str] = ()) -> None:
        """Those that the config named, then those of a script.

        A name is 'module:function' or 'file.py:function'; a class is called to make one.
        """
        if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
            raise TelescopeError(f"callbacks={callbacks!r} is no list: give [f], or several")
        self.requests: dict[Request, str] = {}
        self._callbacks: dict[str, Callback] = {}
        for number, given in enumerate([*named, *callbacks], 1):
            callback: Any = given
            if isinstance(given, str):
                callback = load_function(given, "callback")[1]
            if inspect.isclass(callback):
                callback = callback()
            if not callable(callback):
                raise TelescopeError(f"callback {callback!r} is not a function: give f(event)")
            name = getattr(callback, "__name__", type(callback).__name__)
            self._callbacks[f"{number} ({name})"] = callback

    def send(
        self, name: EventName, trainer: Any, metrics: dict[str, float] | None = None
    ) -> dict[str, float]:
        """Calls the callbacks. Returns the metrics with those that they added."""
        found = dict(metrics or {})
        for callback_name, callback in self._callbacks.items():
            try:
                callback(Event(name, trainer, found, self.requests))
                found = {key: _number(key, value) for key, value in found.items()}
            except TelescopeError:
                raise
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                raise TelescopeError(
                    f"callback {callback_name} raised {type(error).__name__} at {name}: {error} "
                    f"({Path(place.filename).name}, line {place.lineno})"
                ) from error
            if found and name not in _LOGGED:
                raise TelescopeError(
                    f"callback {callback_name} added a metric at {name}: "
                    "only step and evaluate have metrics"
                )
        return found

    def take(self, what: Request) -> bool:
        """Whether this was asked for. The request counts as done from here."""
        return self.requests.pop(what, None) is not None


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"the metric {key!r} = {value!r} is no number") from None
