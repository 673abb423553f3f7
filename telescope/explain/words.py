"""What each number means, in Chinese and English, for an expert and for a twelve-year-old.

The texts are those of words.toml, and of the definition of the estimator or loss. The expert's
meaning of a column is that of the column table (telescope.batch.COLUMNS). A child's words use no
symbols: guess, mark, surprise, credit; the numbers are the same.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from telescope.algorithms.definitions.base import Words
from telescope.algorithms.definitions.notation import num
from telescope.batch import COLUMNS, Column
from telescope.explain.sample import Sample
from telescope.explain.trace import COLUMN_OF_TERM, Trace

Lang = Literal["zh", "en"]
Level = Literal["expert", "kid"]

COLUMN_OF = {
    **COLUMN_OF_TERM,
    "kl": "kl",
    "reward": "token_level_rewards",
    "whitened": "whitened",
}
"""Trace name -> column of the batch."""
_ASSUMED = {"kl_coef": "beta", "gamma": "gamma", "lam": "lam", "clip_low": "epsilon"}
"""Setting -> key of its name."""


@functools.cache
def toml(name: str) -> dict[str, Any]:
    """The content of a file of this folder, such as ask/replies.toml."""
    return tomllib.loads((Path(__file__).parent / name).read_text("utf-8"))


def texts() -> dict[str, dict[str, Any]]:
    return toml("words.toml")


def ui(key: str, lang: Lang, level: Level, *values: object) -> str:
    """A label, with its values filled in."""
    return _of("ui", key, level)[lang].format(*values)


def assumed(sample: Sample, lang: Lang, level: Level) -> str:
    """The settings that nobody said and no number shows; empty if there are none."""
    values = sample.settings.by_name()
    shown = [
        f"{ui(key, lang, level)} {num(values[name])}"
        for name, key in _ASSUMED.items()
        if name in sample.assumed
    ]
    if "whiten" in sample.assumed:
        shown.append(ui("unwhitened", lang, level))
    return ui("assumed", lang, level, ", ".join(shown)) if shown else ""


def column_name(key: str, lang: Lang, level: Level) -> str:
    """The head of a column of the token table."""
    return _of("column", key, level)[lang]


def _of(table: str, key: str, level: Level) -> dict[str, str]:
    """The texts of a key; a child has some of its own."""
    of_child: dict[str, dict[str, str]] = texts()[f"{table}_kid"]
    if level == "kid" and key in of_child:
        return of_child[key]
    found: dict[str, str] = texts()[table][key]
    return found


def formula(trace: Trace, lang: Lang, level: Level) -> str:
    """The trace's formula; for a child, in words."""
    if level == "kid":
        for words in words_of(trace):
            in_words: str = getattr(words, f"kid_formula_{lang}")
            if in_words:
                return in_words
    return trace.formula


def meaning(trace: Trace, lang: Lang, level: Level) -> str:
    """What the number says, in a sentence or two; empty where there is nothing to say."""
    words = next((each for each in words_of(trace) if _in(each, lang, level)), Words())
    own = _in(words, lang, level)
    if level == "kid" or words.whole:
        return own
    if trace.name in ("clip", "surrogate"):
        return own + ui("objective", lang, level)
    column = COLUMNS.get(COLUMN_OF.get(trace.name, ""))
    if column is None:
        return own
    between = "；" if lang == "zh" else "; "
    return between.join(filter(None, [meaning_of(column, lang), own]))


def meaning_of(column: Column, lang: Lang) -> str:
    return column.zh if lang == "zh" else column.en


def _in(words: Words, lang: Lang, level: Level) -> str:
    text: str = getattr(words, f"kid_{lang}" if level == "kid" else lang)
    return text


def words_of(trace: Trace) -> Iterator[Words]:
    """The texts of a trace, the most particular first: of its state, its variant, the quantity.

    Those of the estimator or loss come before the general ones of words.toml.
    """
    keys = [f"{trace.name}:{trace.state}", f"{trace.name}:{trace.variant}", trace.name]
    for key in keys:
        if key in trace.texts:
            yield trace.texts[key]
        if key in texts()["expert"] or key in texts()["kid"]:
            yield words_of_term(key)


@functools.cache
def words_of_term(key: str) -> Words:
    """The texts of a term in words.toml."""
    expert = texts()["expert"].get(key, {})
    kid = texts()["kid"].get(key, {})
    return Words(
        zh=expert.get("zh", ""),
        en=expert.get("en", ""),
        kid_zh=kid.get("zh", ""),
        kid_en=kid.get("en", ""),
        kid_formula_zh=kid.get("formula_zh", ""),
        kid_formula_en=kid.get("formula_en", ""),
        whole=bool(expert.get("whole")),
        claim=expert.get("claim", ""),
    )
