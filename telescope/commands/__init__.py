"""The command line: one file per subcommand, and `main`, which picks one of them.

A subcommand is a module here with `run(arguments)`. It may import everything below, but only inside
functions: `telescope --help` and mistakes in the arguments must not wait for torch.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from telescope.commands.interrupt import CODE, handle_interrupts
from telescope.errors import TelescopeError

COMMANDS = {
    "init": "start a project: a recipe, a reward and sample data",
    "recipes": "list the recipes that come with the package, or print one",
    "train": "train a model on a recipe",
    "sweep": "train a recipe with every combination of some settings, and compare the runs",
    "plan": "estimate memory, network traffic and time of a recipe on a number of GPUs",
    "eval": "measure the accuracy of runs, their checkpoints and models on held-out prompts",
    "compare": "compare the results of several runs, seeds grouped",
    "doctor": "find what is wrong with a run, since when, and which setting to change",
    "audit": "check a run's critic by writing on from its states many times",
    "explain": "recompute and explain every number of a response",
    "dialogue": "list the rounds of a saved dialogue, or save chat messages as one",
    "ask": "answer a question about PPO in your own words, with a sample's numbers",
    "tour": "learn in eight steps what PPO computes for a token, without a run",
    "report": "write one self-contained HTML file of a run, to open from disk",
    "view": "serve the same page live, beside a running job",
    "open": "make a run folder from the files of another trainer",
    "completion": "print a script that completes commands in bash, zsh or fish",
    "export": "write a checkpoint of a run as Hugging Face folders, or push it to the hub",
}
"""Every subcommand with its help line. The subcommand's module has the same name."""


_NO_MEMORY = "out of memory: lower *.micro_batch_tokens or rollout.batch_size"


_AFTER_INTERRUPT = {
    "train": "; if a checkpoint was written, --resume continues from it",
    "sweep": "; the same command goes on with the sweep",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command. A mistake of the user is one line on stderr, and exit code 2."""
    handle_interrupts()  # before anything else is imported
    from telescope.commands.language import choose

    arguments = list(sys.argv[1:] if argv is None else argv)
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            _use_utf8_if_needed(stream)
    choose(arguments)
    try:
        _dispatch(arguments)
        with contextlib.suppress(ValueError):  # a reward may have closed it
            sys.stdout.flush()  # here a full disk can still be told
    except TelescopeError as error:
        _exit(2, " ".join(str(error).split()))
    except KeyboardInterrupt:
        hint = _AFTER_INTERRUPT.get("".join(arguments[:1]), "")
        _exit(CODE, f"interrupted{hint}")
    except MemoryError:
        _exit(2, _NO_MEMORY)
    except RuntimeError as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if "can't allocate memory" in reason:  # torch's, on the CPU
            _exit(2, _NO_MEMORY)
        if type(error).__name__ != "OutOfMemoryError":  # torch's, without importing torch
            raise
        _exit(2, f"out of GPU memory ({reason}): lower *.micro_batch_tokens or rollout.batch_size")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOSPC:
            with open(os.devnull, "w") as nowhere:  # what is left of the output
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
            _exit(2, "cannot write the output: the disk is full")
        if error.filename is None or error.strerror is None:
            raise
        _exit(2, f"{error.filename}: {error.strerror}; check that it exists and may be read")


def _dispatch(arguments: list[str]) -> None:
    from telescope import __version__
    from telescope.commands.arguments import Parser
    from telescope.commands.language import translate

    parser = Parser(
        "telescope [-h] [--version] COMMAND ...",
        "PPO post-training in which every token's credit can be seen.",
        epilog="`telescope COMMAND --help` explains a command.",
    )
    parser.prog = "telescope"
    parser.add_argument("--version", action="version", version=f"telescope {__version__}")
    listed = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        listed.add_parser(name, usage="", description="", add_help=False, help=translate(text))

    if arguments[:1] == ["--lang"]:
        arguments = arguments[2:]  # `choose` has read it
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    if not arguments:
        raise TelescopeError(f"no command given: choose one of {', '.join(COMMANDS)}")
    command, *rest = arguments
    if command in COMMANDS:
        importlib.import_module(f"telescope.commands.{command}").run(rest)
    elif command.startswith("-"):
        parser.parse_args([x for x in arguments if x not in ("--lang", "zh", "en")])
    else:
        raise _unknown_command(command)


def _unknown_command(command: str) -> TelescopeError:
    import difflib

    close = difflib.get_close_matches(command, COMMANDS, 1)
    advice = f"did you mean `{close[0]}`?" if close else f"choose one of {', '.join(COMMANDS)}"
    return TelescopeError(f"no command `{command}`; {advice}")


def _exit(code: int, message: str) -> NoReturn:
    from telescope.commands.language import tell

    tell(message)
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Opens what `>&-` has closed, to nowhere: else a file of ours would take its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _use_utf8_if_needed(stream: io.TextIOWrapper) -> None:
    """Switch a stream to UTF-8 if its encoding cannot write δ, ✓ or the minus sign."""
    try:
        "−δ✓".encode(stream.encoding)
    except (UnicodeEncodeError, LookupError):
        stream.reconfigure(encoding="utf-8")
