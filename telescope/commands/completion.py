"""telescope completion: a script that completes commands, options, settings and recipe names."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re

from telescope.commands.arguments import Parser

USAGE = "telescope completion bash|zsh|fish"
_WITH_SETTINGS = ("train", "sweep", "plan", "eval")
_WITH_RECIPE = ("train", "sweep", "plan")

_BASH = """\
_telescope() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} known=""
  if ((COMP_CWORD == 1)); then
    known="{commands}"
  else
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$known" -- "$current"))
}}
complete -o default -F _telescope telescope
"""
_ZSH = """\
#compdef telescope
_telescope() {{
  if ((CURRENT == 2)); then
    compadd -- {commands}
    return
  fi
  case $words[2] in
{cases}
  esac
  _files
}}
compdef _telescope telescope
"""


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Print a script that completes commands, options, settings and recipe names. "
        'Load it in ~/.bashrc: eval "$(telescope completion bash)"; in ~/.zshrc, after compinit: '
        'eval "$(telescope completion zsh)"; in ~/.config/fish/config.fish: '
        "telescope completion fish | source.",
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="bash, zsh or fish")
    shell = parser.parse_args(arguments).shell
    known = words_of_commands()
    if shell == "fish":
        print("\n".join(_fish(known)))
        return
    template, add = (_BASH, 'known="{}"') if shell == "bash" else (_ZSH, "compadd -- {}")
    cases = [f"    {name}) {add.format(' '.join(words))} ;;" for name, words in known.items()]
    print(template.format(commands=" ".join(known), cases="\n".join(cases)), end="")


def words_of_commands() -> dict[str, list[str]]:
    """Command -> its options and settings, and the names of recipes where it takes one."""
    from telescope.commands import COMMANDS
    from telescope.config import fields
    from telescope.config.recipes import shipped_recipes

    settings = [f"--{key}" for key, *_ in fields()]
    found = {}
    for name in COMMANDS:
        words = set(_options(name))
        if name in _WITH_SETTINGS:
            words.update(settings)
        if name in _WITH_RECIPE:
            words.update(shipped_recipes())
        found[name] = sorted(words)
    return found


def _options(command: str) -> list[str]:
    """The options in the help of a command."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        importlib.import_module(f"telescope.commands.{command}").run(["--help"])
    return re.findall(r"^ +(?:-\w(?: \w+)?, )?(--[\w.-]+)", text.getvalue(), re.MULTILINE)


def _fish(known: dict[str, list[str]]) -> list[str]:
    from telescope.commands import COMMANDS

    lines = []
    for name, words in known.items():
        first = "complete -c telescope -n __fish_use_subcommand -f"
        lines.append(f"{first} -a {name} -d {json.dumps(COMMANDS[name])}")
        chosen = f"-n '__fish_seen_subcommand_from {name}'"
        lines.append(f"complete -c telescope {chosen} -a '{' '.join(words)}'")
    return lines
