"""Follow-ups: λ=1 呢？, what about token 3, 给 12 岁讲, in English, why, which line of code.

A message is a follow-up if nothing is left of it once its wishes and filler words are taken out
(follow_ups.toml). It keeps the question before it and changes how that is answered.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from telescope.explain.words import Lang, Level, toml

Kind = Literal["again", "example", "code", "why", "more"]
_KINDS: tuple[Kind, ...] = ("example", "code", "why", "more", "again")
_WISHES: dict[str, tuple[str, Any]] = {
    "kid": ("level", "kid"),
    "expert": ("level", "expert"),
    "en": ("lang", "en"),
    "zh": ("lang", "zh"),
    "reset": ("reset", True),
    "last": ("token", -1),
    "first": ("token", 0),
}
"""Wish -> the field of `FollowUp` that it sets, and to what."""
_BETWEEN = (
    r"\s*(?:=|:|→|->|改成|改为|变成|换成|设成|设为|取成|取|等于|是|为|changed to|set to|to|equals?|"
    r"were|was|is|of|at)?\s*"
)
_IN_WORDS = {"zero": 0.0, "零": 0.0, "one": 1.0}
_DIGITS = "零一二三四五六七八九十"
_TOKEN = re.compile(
    rf"第\s*(\d+|[{_DIGITS}])\s*个?\s*(?:token|词|字)"
    r"|(?:token|词|(?<![a-z])[it])\s*(?:=|#|number|no\.?|index)?\s*(\d+)(?![\d.])"
)


@dataclass(frozen=True)
class FollowUp:
    """What a message asks to be different. None: as before."""

    kind: Kind = "again"
    lang: Lang | None = None
    level: Level | None = None
    token: int | None = None
    """Index from 0; −1 is the last token."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings to try, by the names of the config."""
    reset: bool = False
    """Back to the sample's own settings."""


class _Patterns:
    """The expressions of follow_ups.toml, compiled."""

    def __init__(self) -> None:
        data = toml("ask/follow_ups.toml")
        self.wishes = {name: _any_of(each) for name, each in data["wishes"].items()}
        self.settings = {
            name: re.compile(
                rf"(?<![a-z_]){symbol}{_BETWEEN}(\d*\.?\d+|zero|one|零)(?![a-z0-9_.]*[a-z0-9_])"
            )
            for name, symbol in data["settings"].items()
        }
        filler = data["filler"]
        self.filler = _any_of([*filler["zh"], *filler["en"], r"[\s\W_]"])


def _any_of(expressions: Iterable[str]) -> re.Pattern[str]:
    """One pattern, the longest first. English stands between characters that are not English."""
    bounded: list[str] = []
    for expression in sorted(expressions, key=len, reverse=True):
        is_english = expression.isascii() and not expression.startswith("[")
        if is_english:
            bounded.append(rf"(?<![a-z0-9_])(?:{expression})(?![a-z0-9_])")
        else:
            bounded.append(f"(?:{expression})")
    return re.compile("|".join(bounded))


@functools.cache
def _patterns() -> _Patterns:
    return _Patterns()


def recognise(text: str) -> FollowUp | None:
    """The follow-up that a message is, or None: it is a question of its own."""
    patterns = _patterns()
    rest = unicodedata.normalize("NFKC", text).lower()
    wished: dict[str, Any] = {}
    changes, rest = _changes(rest)
    rest, found = _take(patterns.wishes["whiten_off"], rest)
    if found:
        changes["whiten"] = False
    for name, (key, value) in _WISHES.items():
        rest, found = _take(patterns.wishes[name], rest)
        if found:
            wished[key] = value
    named = _named_token(rest)
    if named is not None:
        words, wished["token"] = named
        rest = rest.replace(words, " ")
    for kind in _KINDS:
        rest, found = _take(patterns.wishes[kind], rest)
        if found:
            wished.setdefault("kind", kind)
    if changes:
        wished["changes"] = changes
    left_over = patterns.filler.sub("", rest)
    return FollowUp(**wished) if wished and not left_over else None


def token_in(text: str) -> int | None:
    """The index of the token that a question names, e.g. 3 in «token 3», or None."""
    named = _named_token(unicodedata.normalize("NFKC", text).lower())
    return None if named is None else named[1]


def _named_token(text: str) -> tuple[str, int] | None:
    """The words that name a token, and its index."""
    match = _TOKEN.search(text)
    if match is None:
        return None
    index = match[1] or match[2]
    return match[0], _DIGITS.index(index) if index in _DIGITS else int(index)


def _changes(text: str) -> tuple[dict[str, Any], str]:
    """The settings that a message names with a number, and the rest of it."""
    changes: dict[str, Any] = {}
    for name, pattern in _patterns().settings.items():
        match = pattern.search(text)
        if match is None:
            continue
        number = _IN_WORDS[match[1]] if match[1] in _IN_WORDS else float(match[1])
        names = ("clip_low", "clip_high") if name == "clip" else (name,)
        changes |= dict.fromkeys(names, number)
        text = text.replace(match[0], " ")
    return changes, text


def _take(pattern: re.Pattern[str], text: str) -> tuple[str, bool]:
    rest, count = pattern.subn(" ", text)
    return rest, count > 0
