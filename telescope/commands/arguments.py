"""What the subcommands share: a parser with one-line errors, and `--section.key value` settings."""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from telescope.commands.language import language, translate
from telescope.errors import TelescopeError

Setting = tuple[str, str]
"""A dotted key and its value, as typed. `telescope.config` checks both."""

_TRAIN_ONLY = ("--resume", "--resume-from", "--smoke", "--dry-run")


class Parser(argparse.ArgumentParser):
    """An argparse parser that reports a mistake in one line, with the usage.

    Its help is in the language of `telescope.commands.language`, which reads `--lang`. A command
    whose answers have a language of their own adds that option itself (`own_lang`).
    """

    def __init__(
        self, usage: str, description: str, *, own_lang: bool = False, **more: Any
    ) -> None:
        command = " ".join(usage.split()[:2])
        super().__init__(
            prog=more.pop("prog", command),
            usage=usage,
            description=description,
            allow_abbrev=False,
            formatter_class=_Formatter if language() == "zh" else argparse.HelpFormatter,
            **more,
        )
        if not own_lang:
            self.add_argument(
                "--lang",
                choices=["zh", "en"],
                help="language of help and errors (default: that of the locale)",
            )

    def format_help(self) -> str:
        self.description = translate(self.description or "")
        self.epilog = translate(self.epilog) if self.epilog else None
        for group in self._action_groups:
            group.title = translate(group.title or "")
        for action in self._actions:
            if action.help and action.help != argparse.SUPPRESS:
                action.help = translate(action.help)
        return super().format_help()

    def options(self) -> list[str]:
        """Its options, as they are typed."""
        return [name for action in self._actions for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        raise TelescopeError(f"{message}; usage: {self.usage}")


class _Formatter(argparse.HelpFormatter):
    """Help in Chinese: its own word for «usage», and lines broken between characters."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, translate("usage: "))

    def _split_lines(self, text: str, width: int) -> list[str]:
        from telescope.explain.text import wrap

        return wrap(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width))


def add_response(group: argparse._ArgumentGroup) -> None:
    """Adds the options that name a response: of a run, or of a file of numbers."""
    group.add_argument(
        "run",
        nargs="?",
        type=Path,
        metavar="RUN",
        help="run folder, e.g. runs/arithmetic (default: a built-in example)",
    )
    group.add_argument("--step", type=int, help="step of the run (default: the last recorded)")
    group.add_argument(
        "--sample",
        type=int,
        default=0,
        help="which response of the step or of the --numbers file (default 0)",
    )
    group.add_argument(
        "--numbers",
        type=Path,
        metavar="FILE",
        help="numbers typed by hand, of one response or a batch: TOML, JSON or CSV; advantages "
        "that are whitened already are named `whitened`, or come with `whiten = false`",
    )


def add_level(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--level", choices=["expert", "kid"], default="expert", help="kid: for a 12-year-old"
    )


def add_trust(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--trust",
        action="store_true",
        help="run the code that the run's config.toml names, even if you have not trained with it",
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds `--step` and `--best`, which sets `step` to "best"."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="checkpoint of this step (default: the newest)")
    which.add_argument(
        "--best",
        dest="step",
        action="store_const",
        const="best",
        help="the best checkpoint, by eval.best",
    )


def print_json(data: Any, **form: Any) -> None:
    """Prints data as JSON; half a surrogate pair, which cannot be encoded, stays an escape."""
    text = json.dumps(data, ensure_ascii=False, **form)
    print(text.encode("utf-8", "backslashreplace").decode())


def parse_with_settings(
    parser: Parser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, str | None, list[Setting]]:
    """Parses `[RECIPE_OR_RUN] [--option ...] [--section.key value ...]`."""
    options, positionals, settings = parse_several(parser, arguments)
    if len(positionals) > 1:
        parser.error(f"unexpected argument {positionals[1]!r}")
    return options, positionals[0] if positionals else None, settings


def parse_several(
    parser: Parser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str], list[Setting]]:
    """The same with any number of positional arguments.

    Every option that `parser` does not know is taken for a setting. Its name is checked later, by
    `load_config`, which knows all settings and suggests the right one.
    """
    options, rest = parser.parse_known_args(arguments)
    for flag in _TRAIN_ONLY:
        if flag in rest:
            parser.error(f"{flag} belongs to `telescope train`")
    positionals: list[str] = []
    settings: list[Setting] = []
    remaining = iter(rest)
    for argument in remaining:
        if argument.startswith("--"):
            settings.append(_setting(parser, argument, remaining))
        elif argument.startswith("-"):
            parser.error(f"unknown option {argument!r}")
        elif re.fullmatch(r"\+*[\w.]+=.*", argument):  # as verl's commands have them
            key, _, value = argument.lstrip("+").partition("=")
            _check_known(key, parser)
            parser.error(f"{argument!r}: write a setting as --{key} {value}")
        else:
            positionals.append(argument)
    return options, positionals, settings


def _setting(parser: Parser, argument: str, following: Iterator[str]) -> Setting:
    """Reads `--key=value`, or `--key` with the value that follows."""
    key, equals, value = argument.removeprefix("--").partition("=")
    if not equals:
        value = next(following, "--")
        if value.startswith("--"):
            _check_known(key, parser)
            raise TelescopeError(f"--{key} needs a value: --{key} VALUE")
    return key.replace("-", "_"), value


def _check_known(key: str, parser: Parser) -> None:
    """Refuses what is not the name of a setting: another trainer's `--bf16`, or `--resme`."""
    from telescope.config import fields, load_config

    if key.replace("-", "_") in {name for name, *_ in fields()}:
        return
    close = difflib.get_close_matches(f"--{key}", parser.options(), 1, 0.8)
    if close:
        parser.error(f"no option --{key}; did you mean {close[0]}?")
    load_config(None, [(key.replace("-", "_"), "")])
