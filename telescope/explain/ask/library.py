"""What can be looked up by name: columns, settings, metrics, estimators, losses and symbols.

A question that no text answers may still name one of these: `what is response_mask`. Its own
definition is then the answer.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from telescope.algorithms.definitions import ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES
from telescope.algorithms.definitions.registry import Registry
from telescope.batch import COLUMNS
from telescope.config import fields
from telescope.explain.ask.tokens import words
from telescope.explain.symbols import symbols
from telescope.explain.words import Lang, toml

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_/.@+]+[A-Za-z0-9]+)*(?:\+\+)?")
_ASKS_FOR_MEANING = "meaning how why compute setting code output choose need shape formula affect \
default column metric 默认 指标"
"""Words that may stand beside a name when its meaning is asked for."""


_ORDINARY = frozenset({"clip", "attention", "uniform"})
"""Names that are words of every day."""


@dataclass(frozen=True)
class Entry:
    """A thing with a name and a definition."""

    id: str
    """`column:values`, `setting:credit.lam`, `metric:actor/entropy`, `estimator:gae`, …"""
    zh: str
    en: str

    def text(self, lang: Lang) -> str:
        return self.zh if lang == "zh" else self.en


@functools.cache
def entries() -> dict[str, Entry]:
    """Every entry by its name; a setting also by the part after its section."""
    found: dict[str, Entry] = {}
    for kind, registry in _REGISTRIES.items():
        for name, definition in registry.built_in.items():
            said = definition.words
            found[name] = Entry(
                f"{kind}:{name}",
                f"`{name}`：{said.zh}。公式：{definition.formula}",
                f"`{name}`: {said.en}. Formula: {definition.formula}",
            )
    for key, form, default, description in fields():
        entry = Entry(
            f"setting:{key}",
            f"设置 `{key}`（{form}，默认 {default}）：{description}",
            f"Setting `{key}` ({form}, default {default}): {description}",
        )
        found.setdefault(key.split(".")[-1], entry)
        found[key] = entry
    for column in COLUMNS.values():
        formula = f"   {column.formula}" if column.formula else ""
        found[column.name] = Entry(
            f"column:{column.name}",
            f"列 `{column.name}`{formula}\n{column.zh}。由 `{column.maker}` 产生。",
            f"Column `{column.name}`{formula}\n{column.en}. Made by `{column.maker}`.",
        )
    for name, texts in toml("ask/metrics.toml").items():
        found[name] = Entry(
            f"metric:{name}",
            f"指标 `{name}`：{texts['zh']}",
            f"Metric `{name}`: {texts['en']}",
        )
    return found


_REGISTRIES: dict[str, Registry[Any]] = {
    "estimator": ESTIMATORS,
    "loss": POLICY_LOSSES,
    "value_loss": VALUE_LOSSES,
}


_SYMBOL = re.compile(
    r"\s*(?:what (?:is|does|are)|符号|记号|请问|the symbol)?\s*(?P<symbol>\S{1,6}?)\s*"
    r"(?:(?:到底|又)?(?:是|代表|表示|指)(?:的是)?(?:什么|啥)(?:意思|含义|符号)?|什么意思|啥意思"
    r"|mean|stand for)?\s*[?？。]?\s*",
    re.IGNORECASE,
)


def symbol_of(text: str) -> Entry | None:
    """The symbol of the notation table whose meaning is asked for."""
    match = _SYMBOL.fullmatch(text)
    if match is None:
        return None
    for row in symbols():
        if match["symbol"] in (row.symbol, *row.also):
            zh = f"{row.symbol}（{row.name['zh']}）：{row.meaning['zh']}。"
            en = f"{row.symbol} ({row.name['en']}): {row.meaning['en']}."
            verl = f" verl: `{row.verl}`" if row.verl else ""
            return Entry(f"symbol:{row.symbol}", zh + verl, en + verl)
    return None


def look_up(text: str) -> tuple[str, Entry] | None:
    """The entry whose meaning is asked for, and its name as typed.

    The message is the name and little else.
    """
    plain = unicodedata.normalize("NFKC", text)
    for name in sorted(_NAME.findall(plain), key=len, reverse=True):
        entry = _entry(name)
        if entry is None:
            continue
        besides = set(words(plain.replace(name, " "))) - set(words(_ASKS_FOR_MEANING))
        kind = entry.id.partition(":")[0]
        if besides <= {f"={kind}", kind}:
            return name, entry
    return None


def _entry(name: str) -> Entry | None:
    """The entry of this name, unless the name is just a word."""
    entry = entries().get(name) or entries().get(name.lower())
    if entry is None or name.lower() in _ORDINARY:
        return None
    is_algorithm = entry.id.partition(":")[0] in _REGISTRIES
    return entry if is_algorithm or not name.isalpha() else None
