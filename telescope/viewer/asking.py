"""The page's question box: `telescope ask` about a sample, over GET."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args
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


@dataclass(frozen=True)
class Asked:
    """A message, and how it is to be answered."""

    text: str
    after: tuple[str, ...]
    token: int | None
    level: Level
    lang: Lang | None


def read_asked(query: Query) -> Asked:
    """A request's message, checked."""
    after = tuple(query.getlist("after"))
    texts = (query.get("text") or "", *after)
    if len(after) > MOST_BEFORE or any(len(text) > MOST_CHARACTERS for text in texts):
        raise BadRequestError(
            f"a message has at most {MOST_CHARACTERS} characters, and {MOST_BEFORE} before it"
        )
    if not texts[0].strip():
        raise BadRequestError("the question is empty: write one")
    token = query.get("token")
    if token is not None and not (token.isascii() and token.isdigit() and len(token) < 10):
        raise BadRequestError(f"token = {token[:40]}: give a number from 0")
    level = query.get("level") or "expert"
    if level not in get_args(Level):
        raise BadRequestError(f"level = {level[:40]}: use expert or kid")
    lang = query.get("lang")
    if lang is not None and lang not in get_args(Lang):
        raise BadRequestError(f"lang = {lang[:40]}: use zh or en")
    return Asked(
        text=texts[0],
        after=after,
        token=None if token is None else int(token),
        level=cast(Level, level),
        lang=cast(Lang | None, lang),
    )


def answer_of(
    sample: Sample, asked: Asked, batch: Callable[[], Sequence[Sample]], run: Path | None = None
) -> Mapping[str, Any]:
    """The reply as JSON, with the titles of the nearest questions.

    `batch` reads the recorded samples of the step, for a question about other settings.
    """
    # Not at the top: the index takes a moment, and most visitors do not ask.
    from telescope.explain.ask.conversation import Conversation
    from telescope.explain.questions import questions

    written = asked.token is not None and asked.token < len(sample) and sample.mask[asked.token]
    token = asked.token if written else None
    conversation = Conversation(
        sample, lang=asked.lang, level=asked.level, token=token, batch=batch, run=run
    )
    for text in asked.after:
        conversation.ask(text)
    reply = conversation.ask(asked.text)
    titles = {key: questions()[key].title(reply.lang, reply.level) for key in reply.nearest}
    return reply.to_json() | {"titles": titles, "follows": reply.follows}
