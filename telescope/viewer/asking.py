"""The page's question box: `telescope ask` about a sample, over GET."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qsl

from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.words import Lang, Level

MOST_CHARACTERS = 300
"""Of one message."""
MOST_BEFORE = 6
"""Messages before it that a follow-up may build on."""


class Query:
    """The part of an address behind its question mark."""

    def __init__(self, text: str = "") -> None:
        self.pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=50)

    def get(self, name: str) -> str | None:
        """The last value of this name."""
        return dict(self.pairs).get(name)

    def getlist(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]


class BadRequestError(TelescopeError):
    """A message that cannot be read: HTTP 400."""


def answer_of(
    sample: Sample, query: Query, batch: Callable[[], Sequence[Sample]], run: Path
) -> Mapping[str, Any]:
    """The reply to the query's message as JSON, with the titles of the nearest questions.

    `batch` reads the recorded samples of the step, for a question about other settings.
    """
    # Not at the top: the index takes a moment, and most visitors do not ask.
    from telescope.explain.ask.conversation import Conversation
    from telescope.explain.questions import questions

    *before, text = _messages(query)
    token = _token(query)
    level = _one_of(Level, "level", query.get("level") or "expert")
    lang = _one_of(Lang, "lang", query.get("lang"))
    written = token is not None and token < len(sample) and sample.mask[token]
    conversation = Conversation(
        sample, lang=lang, level=level, token=token if written else None, batch=batch, run=run
    )
    for each in before:
        conversation.ask(each)
    reply = conversation.ask(text)
    titles = {key: questions()[key].title(reply.lang, reply.level) for key in reply.nearest}
    return reply.to_json() | {"titles": titles, "follows": reply.follows}


# ---- the request, checked ----


def _messages(query: Query) -> list[str]:
    """What was asked before, and the question."""
    before = query.getlist("after")
    text = query.get("text") or ""
    if len(before) > MOST_BEFORE or any(len(each) > MOST_CHARACTERS for each in [*before, text]):
        raise BadRequestError(
            f"a message has at most {MOST_CHARACTERS} characters, and {MOST_BEFORE} before it"
        )
    if not text.strip():
        raise BadRequestError("the question is empty: write one")
    return [*before, text]


def _token(query: Query) -> int | None:
    token = query.get("token")
    if token is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", token):
        raise BadRequestError(f"token = {token[:40]}: give a number from 0")
    return int(token)


def _one_of(choices: Any, name: str, given: str | None) -> Any:
    if given is not None and given not in get_args(choices):
        raise BadRequestError(f"{name} = {given[:40]}: use {' or '.join(get_args(choices))}")
    return given
