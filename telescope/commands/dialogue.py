"""telescope dialogue: the rounds of a Markdown log or of chat messages."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telescope.commands.arguments import Parser, print_json
from telescope.errors import TelescopeError
from telescope.explain.text import printable

if TYPE_CHECKING:
    from telescope.explain.messages import Round

USAGE = "telescope dialogue FILE [--round N] [--json] [--save-as NAME.md]"


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "List the rounds (question and answer) of a dialogue. FILE is a Markdown log, as "
        "`explain --save-dialogue` and `ask` write it, or chat messages with `role` and `content`: "
        "a JSON list, or one message per line. System turns and tool calls are left out.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help=".md, .json or .jsonl")
    parser.add_argument("--round", type=int, metavar="N", help="print this round whole (from 1)")
    parser.add_argument("--json", action="store_true", help="the rounds as JSON")
    parser.add_argument(
        "--save-as",
        type=Path,
        metavar="NAME.md",
        help="write the rounds as a Markdown log, or append them to one; "
        "YYYYMMDD_HHMMSS in the name stands for the time",
    )
    options = parser.parse_args(arguments)
    rounds = _rounds(options.file)
    if options.round is not None:
        rounds = [_chosen(rounds, options.round, options.file)]

    if options.save_as is not None:
        from telescope.explain.dialogue import Dialogue

        path = Dialogue.named(options.save_as, datetime.now()).save(rounds)
        print(path, file=sys.stderr)
    elif options.json:
        plain = [{"question": question, "answer": answer} for question, answer in rounds]
        print_json(plain, indent=1)
    elif options.round is not None:
        question, answer = rounds[0]
        print(printable(f"用户：{question}\n助手：{answer}"))
    else:
        _print_list(rounds)


def _rounds(file: Path) -> list[Round]:
    from telescope.explain.dialogue import Dialogue
    from telescope.explain.messages import rounds_of

    if file.suffix.lower() not in (".json", ".jsonl"):
        return Dialogue.read(file).rounds
    messages = _messages(file)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TelescopeError(
                f'{file}: a message is {{"role": "user", "content": "…"}}, not {message!r:.80}'
            )
    return rounds_of(messages)


def _messages(file: Path) -> list[Any]:
    """The messages of a JSON list, of an object with `messages`, or of JSON lines."""
    try:
        text = file.read_text("utf-8-sig")
        if file.suffix.lower() == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        data = json.loads(text)
    except OSError as error:
        raise TelescopeError(
            f"cannot read {file} ({error.strerror}): give a .md, .json or .jsonl file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise TelescopeError(f"{file} is not valid JSON in UTF-8: {error}") from None
    if isinstance(data, dict):
        data = data.get("messages")
    if not isinstance(data, list):
        raise TelescopeError(
            f'{file} has no messages: give a list, or an object with "messages": [...]'
        )
    return data


def _chosen(rounds: list[Round], number: int, file: Path) -> Round:
    if not 1 <= number <= len(rounds):
        raise TelescopeError(f"--round {number}: {file} has rounds 1 to {len(rounds)}")
    return rounds[number - 1]


def _print_list(rounds: list[Round]) -> None:
    """Each round on two lines: the question, and the beginning of the answer."""
    for number, (question, answer) in enumerate(rounds, 1):
        shown = f"{number:3}  用户：{_first_line(question)}\n     助手：{_first_line(answer)}"
        print(printable(shown))


def _first_line(message: str) -> str:
    line, *more = message.strip().splitlines() or [""]
    if len(line) > 70:
        return f"{line[:70]}…"
    return f"{line} …" if more else line
