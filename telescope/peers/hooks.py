"""Listening to methods of another trainer without changing what they do."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

VARIABLE = "TELESCOPE_WATCH"
"""Names the folder of a trainer that is watched from outside. The others begin with it."""


def listen(
    owner: Any,
    name: str,
    guard: Callable[[], AbstractContextManager[None]],
    *,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
    at_end: Callable[..., object] | None = None,
) -> None:
    """Calls `before(*arguments)` and `after(result, *arguments)` around each call of the method.

    `at_end(*arguments)` comes last, also where the method raises. `guard` holds back their errors.
    """
    method = getattr(owner, name)

    @functools.wraps(method)
    def heard(*args: Any, **kwargs: Any) -> Any:
        try:
            if before is not None:
                with guard():
                    before(*args, **kwargs)
            result = method(*args, **kwargs)
            if after is not None:
                with guard():
                    after(result, *args, **kwargs)
            return result
        finally:
            if at_end is not None:
                with guard():
                    at_end(*args, **kwargs)

    setattr(owner, name, heard)


def frames(function: str) -> Iterator[dict[str, Any]]:
    """The local variables of every running call of `function`, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function:
            yield dict(frame.f_locals)
        frame = frame.f_back


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, under the trainer's names."""
    found = {}
    for name, value in metrics.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def kept(ids: Any, mask: Any) -> list[Any]:
    """Rows without the ids whose mask is 0."""
    return [row[on] for row, on in zip(ids, mask.bool(), strict=True)]


def options_of_environment() -> dict[str, Any]:
    """How much is kept, for a `Recorder`."""
    return {
        "samples": int(os.environ.get(f"{VARIABLE}_SAMPLES", "32")),
        "every": int(os.environ.get(f"{VARIABLE}_EVERY", "1")),
    }


def variables_of_workers() -> dict[str, str]:
    """Our variables, with the folder as it is seen from everywhere."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(VARIABLE)}
    if ours.get(VARIABLE):
        ours[VARIABLE] = os.path.abspath(ours[VARIABLE])
    return ours
