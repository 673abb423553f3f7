"""An optional language model for the wording, behind an OpenAI-compatible endpoint.

It receives the question and our answer, nothing else. Every number of what it writes is checked
(telescope.explain.ask.checking): it must be one of ours, and belong to the same quantity. Otherwise
our own text is shown.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.ask.checking import foreign_number, moved_number
from telescope.explain.ask.replies import say
from telescope.explain.words import Lang

TIMEOUT = 30.0
"""Seconds to wait for the server."""
MOST_BYTES = 1_000_000
"""A longer reply of the server is refused."""


@dataclass(frozen=True)
class Endpoint:
    """Where the model is."""

    url: str
    model: str
    timeout: float = TIMEOUT

    @property
    def address(self) -> str:
        """`…/v1/chat/completions`, whether the host, its /v1 or the whole address was given."""
        url = self.url.rstrip("/")
        if not re.match(r"https?://[^/]", url):
            raise TelescopeError(f"--llm {self.url}: give an http:// or https:// address")
        if url.endswith("/chat/completions"):
            return url
        return f"{url}/chat/completions" if url.endswith("/v1") else f"{url}/v1/chat/completions"


def reworded(endpoint: Endpoint, question: str, text: str, lang: Lang) -> str:
    """The model's wording of our text; our text with a note where that cannot be used."""
    address = endpoint.address
    try:
        answer = _complete(endpoint, address, question, text, lang)
    except _ServerError as error:
        return f"{say('model error', lang, error)}\n{text}"
    facts = f"{question}\n{text}"
    for kind, found in (("numbers", foreign_number), ("moved", moved_number)):
        wrong = found(answer, facts)
        if wrong is not None:
            return f"{say(f'model {kind}', lang, wrong)}\n{text}"
    return answer


class _ServerError(Exception):
    """Why there is no reply, in a few words."""


def _complete(endpoint: Endpoint, address: str, question: str, text: str, lang: Lang) -> str:
    messages = [
        {"role": "system", "content": say("model system", lang)},
        {"role": "user", "content": say("model user", lang, question, text)},
    ]
    body = {"model": endpoint.model, "messages": messages, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    # The scheme is http or https: `Endpoint` checks it.
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=endpoint.timeout) as reply:  # noqa: S310
            content = reply.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise _ServerError(f"HTTP {error.code}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise _ServerError(" ".join(str(reason).split())) from None
    if len(content) > MOST_BYTES:
        raise _ServerError("the reply is too long")
    return _content_of(content)


def _content_of(content: bytes) -> str:
    try:
        data: Any = json.loads(content)
        text = data["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise _ServerError("not a chat completion") from None
    if not isinstance(text, str):
        raise _ServerError("not a chat completion")
    # A terminal obeys control characters: only line breaks and tabs are kept.
    kept = [c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf")]
    if not "".join(kept).strip():
        raise _ServerError("an empty reply")
    return "".join(kept).strip()
