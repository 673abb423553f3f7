"""telescope ask: a question in the user's own words, or a conversation about a response."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from telescope.commands.arguments import Parser, add_level, add_response, print_json
from telescope.commands.language import language
from telescope.errors import TelescopeError

if TYPE_CHECKING:
    from telescope.explain.ask.conversation import Conversation, Reply
    from telescope.explain.ask.log import Log
    from telescope.explain.sample import Sample
    from telescope.explain.words import Lang

USAGE = "telescope ask [QUESTION] [RUN | --numbers FILE] [options]"
MOST_CHARACTERS = 2000
"""Of one message."""
_QUIT = (":quit", ":q", ":exit", "/quit", "/exit", "exit", "quit")
_HELP = {
    "zh": """\
可以问这条回答的任何一个数：价值、奖励、优势、回报、白化、裁剪、KL……
追问：举个例子 · 为什么 · 更详细 · 再说一遍 · 给 12 岁讲 · 用英文
　　　λ=1 呢？ · 第 3 个 token 呢（从 0 数） · 和 verl 的哪一行对应？
:save [DIR] 存成 Markdown · :questions 列出全部问题 · :quit 退出""",
    "en": """\
Ask about any number of this response: values, rewards, advantages, returns, whitening, KL, …
Follow-ups: give an example · why · more detail · again · for a 12-year-old · in Chinese
            what if λ=1 · what about token 3 (from 0) · which line in the code
:save [DIR] writes a Markdown log · :questions lists the questions · :quit ends""",
}


def run(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)
    _check(options)
    _Session(options).run()


def _parser() -> Parser:
    description = "Answer a question in your own words with a response's numbers."
    parser = Parser(USAGE, description, own_lang=True)
    parser.add_argument(
        "question", nargs="?", metavar="QUESTION", help="(default: start a conversation)"
    )
    source = parser.add_argument_group("what it is about")
    add_response(source)
    source.add_argument(
        "--token", type=int, help="the token that answers are about, from 0 (default: the first)"
    )

    form = parser.add_argument_group("how it is answered")
    form.add_argument(
        "--lang", choices=["zh", "en"], help="(default: the language of each question)"
    )
    add_level(form)
    form.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="TEXT",
        help="the question before this one, so that this one may be a follow-up; may be repeated",
    )
    form.add_argument("--json", action="store_true", help="print the reply as JSON")
    form.add_argument(
        "--llm",
        nargs=2,
        metavar=("URL", "MODEL"),
        help="let a model behind an OpenAI-compatible address word the answer; its numbers are "
        "checked (key: OPENAI_API_KEY)",
    )

    log = parser.add_argument_group("the log")
    log.add_argument("--save", type=Path, metavar="DIR", help="write the rounds as a Markdown log")
    log.add_argument(
        "--continue",
        dest="continued",
        type=Path,
        metavar="FILE",
        help="go on with a saved conversation and append to it",
    )
    parser.set_defaults(prompt=None, response=None, model=None, score=None)
    return parser


def _check(options: argparse.Namespace) -> None:
    """An argument that is a folder is the run, also if it stands before the question."""
    given = options.question
    if given and Path(given).is_dir() and not (options.run and options.run.is_dir()):
        options.question = options.run and str(options.run)
        options.run = Path(given)
    if options.save and options.continued:
        raise TelescopeError("--save starts a log and --continue goes on with one: leave one out")
    if options.question is not None and not options.question.strip():
        raise TelescopeError("the question is empty: ask one, or leave it out for a conversation")


class _Session:
    """One question, or messages from the terminal until it ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        from telescope.commands.explain import read_source
        from telescope.explain.ask.conversation import Conversation

        self.options = options
        source = read_source(options)
        sample = source.sample
        token = options.token
        if token is not None and not sample.mask[token]:
            raise TelescopeError(
                f"token {token} was not written by the policy, so no answer is about it: "
                "choose another"
            )
        self.width = shutil.get_terminal_size((100, 24)).columns
        self.conversation: Conversation = Conversation(
            sample,
            lang=options.lang,
            level=options.level,
            token=token,
            batch=source.whitened_with,
            run=source.run,
        )
        self.log: Log = self._open_log(sample)

    @property
    def lang(self) -> Lang:
        """Of what the program itself says."""
        if self.options.lang is not None:
            lang: Lang = self.options.lang
            return lang
        if self.conversation.last is not None:
            return self.conversation.last.lang
        return language()

    def run(self) -> None:
        for text in self.options.after:
            self.conversation.ask(text)
        if self.options.question is not None:
            self.answer(self.options.question)
            return
        is_typed = sys.stdin.isatty()
        if is_typed and not self.options.json:
            print(self._about())
        for text in _messages(is_typed):
            if text in _QUIT:
                break
            if text.startswith((":", "/")):
                self._command(text[1:])
            else:
                self.answer(text)

    def answer(self, text: str) -> None:
        """Prints the reply to a message, and adds the round to the log."""
        text = text[:MOST_CHARACTERS]
        reply = self.conversation.ask(text)
        shown = self._reworded(text, reply)
        if self.options.json:
            print_json(reply.to_json() | {"text": shown})
        else:
            print(self._folded(shown), flush=True)
        kept = reply.answer.markdown() if shown == reply.text else shown
        path = self.log.add(text, kept, reply)
        if path is not None and self.options.question is not None:
            print(path, file=sys.stderr)

    def _reworded(self, text: str, reply: Reply) -> str:
        if self.options.llm is None or reply.answered is None:
            return reply.text
        from telescope.explain.ask.llm import Endpoint, reworded

        url, model = self.options.llm
        return reworded(Endpoint(url, model), text, reply.text, reply.lang)

    def _folded(self, text: str) -> str:
        from telescope.explain.text import fold

        return fold(text, self.width) + "\n"

    # ---- the terminal ----

    def _about(self) -> str:
        from telescope.explain.chat import user_turn
        from telescope.explain.text import shorten, visible

        sample = self.conversation.sample
        texts = (user_turn(sample.prompt), sample.response)
        shown = [visible(text, spaces=False) for text in texts]
        head = shorten(" → ".join(shown), self.width)
        return self._folded(f"{head}\n{_HELP[self.lang]}")

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name == "save":
            folder = Path(rest.strip() or ".")
            print(self.log.start(folder, datetime.now()))
        elif name == "questions":
            from telescope.explain.questions import titles

            for key, title in titles(self.lang, self.options.level):
                print(f"{key:>4}  {title}")
        else:
            print(self._folded(_HELP[self.lang]))

    def _open_log(self, sample: Sample) -> Log:
        from telescope.explain.ask.log import Log

        log = Log(sample)
        if self.options.save is not None:
            log.start(self.options.save, datetime.now())
        if self.options.continued is not None:
            for question in log.read(self.options.continued):
                self.conversation.ask(question[:MOST_CHARACTERS])
        return log


def _messages(is_typed: bool) -> Iterator[str]:
    """Lines of the standard input, with a prompt if somebody types them."""
    if is_typed:
        import contextlib

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (arrow keys and history)
    while True:
        try:
            line = input("? ") if is_typed else input()
        except EOFError:
            if is_typed:
                print()
            return
        if line.strip():
            yield line.strip()
