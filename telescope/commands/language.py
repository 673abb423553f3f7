"""The language of help and errors.

It is Chinese after `--lang zh`, or where LC_ALL, LC_MESSAGES or LANG begins with zh.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Literal

from telescope.chinese import chinese

Lang = Literal["zh", "en"]

_chosen: Lang | None = None


def from_environment() -> Lang:
    """The language of the locale."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name)
        if value:
            return "zh" if value.startswith("zh") else "en"
    return "en"


def choose(arguments: Sequence[str]) -> None:
    """Takes the language from the command line, else from the locale."""
    global _chosen
    _chosen = None
    for argument, following in itertools.pairwise([*arguments, ""]):
        value = argument.removeprefix("--lang=") if argument.startswith("--lang=") else None
        if argument == "--lang":
            value = following
        if value in ("zh", "en"):
            _chosen = "zh" if value == "zh" else "en"


def language() -> Lang:
    return from_environment() if _chosen is None else _chosen


def tell(*messages: str) -> None:
    """Prints messages on stderr, without the control characters of a file that they may quote."""
    from telescope.explain.text import visible

    for message in messages:
        print(f"telescope: {visible(translate(message), spaces=False)}", file=sys.stderr)


def translate(text: str) -> str:
    """The text in the chosen language."""
    return chinese(text) if language() == "zh" else text
