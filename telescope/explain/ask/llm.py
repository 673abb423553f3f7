"""An optional language model for the wording, behind an OpenAI-compatible endpoint.

It receives the question and our answer, nothing else. Every number of what it writes must be one
of ours, as printed or correctly rounded. Otherwise our own text is shown.
"""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.words import Lang

TIMEOUT = 30.0
"""Seconds to wait for the server."""
MOST_BYTES = 1_000_000
"""A longer reply of the server is refused."""
_SYSTEM = {
    "zh": "你改写一段关于强化学习的回答，让提问的人更容易读懂。只用给出的事实，不加新的事实和数字，"
    "数字照抄，不编号。用中文回答。",
    "en": "You rewrite an answer about reinforcement learning so that the person who asked can "
    "read it easily. Use only the facts given. Add no facts and no numbers, copy numbers as they "
    "are, and do not number your sentences. Answer in English.",
}
_USER = {"zh": "问题：{}\n\n事实：\n{}", "en": "Question: {}\n\nFacts:\n{}"}
_NOTES = {
    "numbers": {
        "zh": "（模型的改写里有数字 {} 不在我们的数据里，所以显示原文。）",
        "en": "(The model's wording has the number {}, which is not ours: this is our own text.)",
    },
    "error": {
        "zh": "（模型没有可用的回答：{}。下面是原文。）",
        "en": "(No usable reply from the model: {}. This is our own text.)",
    },
}
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_NUMBER = re.compile(r"(?<![\d.])(-?)(\d+(?:\.\d+)?|\.\d+)(?:e([+-]?\d+))?(\s*%)?", re.IGNORECASE)
_WORDS_EN = (
    "two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred "
    "thousand million half third quarter twice double triple"
)
_WORD_EN = re.compile(rf"\b(?:{'|'.join(_WORDS_EN.split())})\b", re.IGNORECASE)
_WORD_ZH = re.compile("[零二两三四五六七八九十百千万亿半]+")


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
        return f"{_NOTES['error'][lang].format(error)}\n{text}"
    foreign = foreign_number(answer, f"{question}\n{text}")
    if foreign is not None:
        return f"{_NOTES['numbers'][lang].format(foreign)}\n{text}"
    return answer


class _ServerError(Exception):
    """Why there is no reply, in a few words."""


def _complete(endpoint: Endpoint, address: str, question: str, text: str, lang: Lang) -> str:
    messages = [
        {"role": "system", "content": _SYSTEM[lang]},
        {"role": "user", "content": _USER[lang].format(question, text)},
    ]
    body = {"model": endpoint.model, "messages": messages, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=endpoint.timeout) as reply:
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


# ---- the check ----


def foreign_number(text: str, ours: str) -> str | None:
    """The first number of `text` that `ours` does not have; None if all are ours.

    A number is ours if it is printed there, or is one of those correctly rounded. A percentage may
    stand for the fraction. Numbers in words must stand there in the same words or as digits.
    """
    known = [value for _, value, _ in _numbers(ours)]
    for shown, value, step in _numbers(text):
        if not any(_rounds_to(each, value, step) for each in known):
            return shown
    return _foreign_word(text, ours.lower(), known)


def _numbers(text: str) -> list[tuple[str, float, float]]:
    """As printed, the value, and the last printed digit's step."""
    plain = _SUPERSCRIPT.sub(lambda match: f" {match[0]} ", text)
    plain = unicodedata.normalize("NFKC", plain).replace("−", "-").replace(",", " ")
    found: list[tuple[str, float, float]] = []
    for match in _NUMBER.finditer(plain):
        sign, digits, exponent, percent = match.groups()
        before = plain[: match.start()][-1:]
        is_minus = sign and not before.isalnum() and before not in (")", "]", "}")
        scale = 10.0 ** int(exponent or 0) / (100 if percent else 1)
        value = float(digits) * scale * (-1 if is_minus else 1)
        decimals = len(digits.partition(".")[2])
        found.append((match[0].strip(), value, scale * 10.0**-decimals))
    return found


def _rounds_to(ours: float, shown: float, step: float) -> bool:
    return math.isclose(ours, shown, rel_tol=1e-9, abs_tol=step * 0.5 * (1 + 1e-9))


def _foreign_word(text: str, ours: str, known: list[float]) -> str | None:
    """The first number in words that `ours` has neither in these words nor in digits."""
    for pattern in (_WORD_EN, _WORD_ZH):
        for word in pattern.findall(text):
            if word.lower() not in ours and _value_of(word.lower()) not in known:
                return str(word)
    return None


def _value_of(word: str) -> float | None:
    """The value of a small number in words; None for others."""
    names = _WORDS_EN.split()[:11]
    if word in names:
        return float(names.index(word) + 2)
    if len(word) == 1 and word in "零二三四五六七八九":
        return float("零一二三四五六七八九".index(word))
    return 2.0 if word == "两" else None
