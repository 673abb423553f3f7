"""Chinese texts of help and errors: one catalogue (chinese.toml), keyed by the English text.

A key may hold `{}` for what is filled in; it stands for the same part of the Chinese text, in its
order, or as {0}, {1}. A text without an entry stays English.
"""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path

_LONGEST = 5000
"""Characters of a message that is looked up."""


@functools.cache
def catalogue() -> dict[str, str]:
    """English text -> Chinese text."""
    return tomllib.loads(Path(__file__).with_name("chinese.toml").read_text("utf-8"))


def chinese(text: str) -> str:
    """The Chinese text, with its parts filled in; the English one if there is no entry."""
    known = catalogue()
    if text in known:
        return known[text]
    if len(text) > _LONGEST:
        return text
    said, usage, form = text.rpartition("; usage: ")
    if usage:
        return f"{chinese(said)}；用法：{form}"
    for pattern, zh in _patterns():
        found = pattern.fullmatch(text)
        if found:
            return zh.format(*[chinese(part) for part in found.groups()])
    start, colon, rest = text.partition(": ")  # «numbers.toml: what is wrong»
    said = chinese(rest) if colon else rest
    return f"{start}：{said}" if said != rest else text


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Entries with parts to fill in, those with the most fixed text first."""
    found = []
    for en, zh in catalogue().items():
        if "{}" in en:
            fixed = [re.escape(part) for part in en.split("{}")]
            found.append((re.compile("(.*?)".join(fixed), re.DOTALL), zh))
    return sorted(found, key=lambda entry: -len(entry[0].pattern))
