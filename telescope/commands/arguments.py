"""What the subcommands share: a parser with one-line errors, and `--section.key value` settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NoReturn

from telescope.errors import TelescopeError

Setting = tuple[str, str]
"""A dotted key and its value, as typed. `telescope.config` checks both."""

_TRAIN_ONLY = ("--resume", "--smoke")


class Parser(argparse.ArgumentParser):
    """An argparse parser that reports a mistake in one line, with the usage."""

    def __init__(self, usage: str, description: str) -> None:
        command = " ".join(usage.split()[:2])
        super().__init__(prog=command, usage=usage, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise TelescopeError(f"{message}; usage: {self.usage}")


def parse_with_settings(
    parser: Parser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, str | None, list[Setting]]:
    """Parses `[RECIPE_OR_RUN] [--option ...] [--section.key value ...]`.

    Every option that `parser` does not know is taken for a setting. Its name is checked later, by
    `load_config`, which knows all settings and suggests the right one.
    """
    options, rest = parser.parse_known_args(arguments)
    for flag in _TRAIN_ONLY:
        if flag in rest:
            parser.error(f"{flag} belongs to `telescope train`")
    positional: str | None = None
    settings: list[Setting] = []
    remaining = iter(rest)
    for argument in remaining:
        if argument.startswith("--"):
            settings.append(_setting(argument, remaining))
        elif argument.startswith("-"):
            parser.error(f"unknown option {argument!r}")
        elif positional is None:
            positional = argument
        else:
            parser.error(f"unexpected argument {argument!r}")
    return options, positional, settings


def _setting(argument: str, following: Iterator[str]) -> Setting:
    """Reads `--key=value`, or `--key` with the value that follows."""
    key, equals, value = argument.removeprefix("--").partition("=")
    if not equals:
        value = next(following, "--")
        if value.startswith("--"):
            raise TelescopeError(f"--{key} needs a value: --{key} VALUE")
    return key.replace("-", "_"), value
