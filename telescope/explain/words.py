"""What each number means, in Chinese and English, for an expert and for a twelve-year-old (texts: words.toml).

The expert's meaning of a column is the one of the column table (telescope.batch.COLUMNS). The child's words use no
symbol: guess, mark, surprise, credit; the numbers are the same.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, Literal

from telescope.batch import COLUMNS
from telescope.explain.trace import Trace

Lang = Literal["zh", "en"]
Level = Literal["expert", "kid"]

COLUMN_OF = {
    "kl": "kl",
    "reward": "token_level_rewards",
    "delta": "deltas",
    "advantage_sum": "advantages",
    "advantage": "advantages",
    "return": "returns",
    "whitened": "whitened",
}
"""Trace name -> column of the batch."""


@functools.cache
def texts() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))


def ui(key: str, lang: Lang, level: Level, *values: object) -> str:
    return _of("ui", key, level)[lang].format(*values)


def column_name(key: str, lang: Lang, level: Level) -> str:
    return _of("column", key, level)[lang]


def _of(table: str, key: str, level: Level) -> dict[str, str]:
    kid = texts()[f"{table}_kid"] if level == "kid" else {}
    return kid.get(key) or texts()[table][key]


def formula(trace: Trace, lang: Lang, level: Level, estimator: str = "gae") -> str:
    """The trace's formula; for a child, in words."""
    found = _entries(trace, level, estimator) if level == "kid" else []
    return next(
        (entry[f"formula_{lang}"] for entry in found if f"formula_{lang}" in entry), trace.formula
    )


def meaning(
    trace: Trace, lang: Lang, level: Level, estimator: str = "gae", loss: str = "clip"
) -> str:
    """What the number says, in a sentence or two; empty where nothing is to be said."""
    entry = next((entry for entry in _entries(trace, level, estimator, loss) if lang in entry), {})
    own, column = entry.get(lang, ""), COLUMNS.get(COLUMN_OF.get(trace.name, ""))
    if level == "kid" or "whole" in entry:
        return own
    if trace.name in ("clip", "surrogate"):
        return own + ui("objective", lang, level)
    return (
        own if column is None else f"{column.zh}；{own}" if lang == "zh" else f"{column.en}; {own}"
    )


def _entries(
    trace: Trace, level: Level, estimator: str, loss: str = "clip"
) -> list[dict[str, Any]]:
    """The texts of a trace, the most particular first: of its state, of its formula, of the run's estimator, of the quantity."""
    state = "unused" if trace.name == "clip" and loss == "cpi" else trace.state
    keys = (
        f"{trace.name}:{state}",
        f"{trace.name}:{trace.variant}",
        f"{trace.name}:{estimator}",
        trace.name,
    )
    return [texts()[level][key] for key in keys if key in texts()[level]]
