"""Simple terms of a reward: exact answer, pattern, JSON schema, format, length, repetition.

Each function here takes a term's options and returns the reward function. Text is compared in the
policy's last turn: in the whole response a tool may have written the answer.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from telescope.data.loader import last_match
from telescope.errors import TelescopeError, pip_install

Scorer = Callable[..., list[Any]]


def is_empty(value: Any) -> bool:
    """Whether a row has nothing in this column: None, NaN, an empty text or an empty list."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value in ([], ()) or (isinstance(value, float) and math.isnan(value))


def exact(*, column: str = "answer", pattern: str | None = None, case: bool = True) -> Scorer:
    """1 if the answer is the row's `column`, or one of them if that is a list; else 0.

    The answer is the whole last turn, or the last match of `pattern` (its group 1, if it has one).
    Spaces at the ends do not count, and without `case` neither do capitals. A row whose column is
    empty has no score.
    """
    compiled("exact", pattern or "")

    def score(last_turns: Sequence[str], **columns: Any) -> list[float | None]:
        if column not in columns:
            raise TelescopeError(
                f"the reward `exact` compares with the column {column!r}; "
                f"the data has {', '.join(sorted(columns))}"
            )
        return [one(text, right) for text, right in zip(last_turns, columns[column], strict=True)]

    def one(text: str, right: Any) -> float | None:
        if is_empty(right):
            return None
        found = text if pattern is None else last_match(pattern, text)
        wanted = right if isinstance(right, list | tuple) else [right]
        return float(found is not None and plain(found) in [plain(each) for each in wanted])

    def plain(value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # pandas makes 5.0 of a 5 in a column with gaps
        text = str(value)
        return text.strip() if case else text.strip().casefold()

    return score


def regex(*, pattern: str, whole: bool = False) -> Scorer:
    """1 if the pattern is found in the last turn; with `whole`, if it matches all of it."""
    expression = compiled("regex", pattern)
    search = expression.fullmatch if whole else expression.search

    def score(last_turns: Sequence[str]) -> list[float]:
        return [float(search(text) is not None) for text in last_turns]

    return score


def format_(*, tags: Sequence[str] = ("think", "answer")) -> Scorer:
    """1 if the last turn is <think>…</think><answer>…</answer>: each tag once, nothing outside."""
    parts = [rf"<{re.escape(tag)}>.*?</{re.escape(tag)}>" for tag in tags]
    compiled = re.compile(r"\s*" + r"\s*".join(parts) + r"\s*", re.DOTALL)
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]

    def score(last_turns: Sequence[str]) -> list[float]:
        return [
            float(bool(compiled.fullmatch(text)) and all(text.count(mark) == 1 for mark in marks))
            for text in last_turns
        ]

    return score


def json_schema(*, schema: dict[str, Any] | str) -> Scorer:
    """1 if the last turn, or its last ```json block, is JSON that the schema allows; else 0.

    `schema` is a table, or the path of a JSON file.
    """
    if importlib.util.find_spec("jsonschema") is None:
        raise TelescopeError(f"the reward `json_schema` needs jsonschema: {pip_install('rewards')}")
    import jsonschema

    if isinstance(schema, str):
        try:
            schema = json.loads(Path(schema).expanduser().read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise TelescopeError(f"json_schema: {schema} is not a JSON file: {error}") from None
    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise TelescopeError(f"json_schema: this is not a JSON schema: {error.message}") from None
    validator = kind(schema)
    block = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)

    def score(last_turns: Sequence[str]) -> list[float]:
        return [one((block.findall(text) or [text])[-1]) for text in last_turns]

    def one(text: str) -> float:
        try:
            return float(validator.is_valid(json.loads(text)))
        except (ValueError, RecursionError):
            return 0.0

    return score


def length(*, most: int, least: int = 0) -> Scorer:
    """0 for a response of `least` to `most` tokens; below and above it falls to −1.

    −1 is reached at 0 tokens and at twice `most`. Only the response's length counts.
    """
    if not 0 <= least <= most or not most:
        raise TelescopeError(f"length: least = {least}, most = {most}: use 0 ≤ least ≤ most")

    def score(response_ids: Sequence[Sequence[int]]) -> list[float]:
        return [one(len(ids)) for ids in response_ids]

    def one(count: int) -> float:
        if count < least:
            return count / least - 1.0
        return -min(max(count - most, 0) / most, 1.0)

    return score


def repetition(*, n: int = 4) -> Scorer:
    """Minus the share of the response's n-grams that it had already: 0 if none is repeated."""
    if n < 1:
        raise TelescopeError(f"repetition: n = {n} is no number of tokens: use at least 1")

    def score(response_ids: Sequence[Sequence[int]]) -> list[float]:
        return [one(list(ids)) for ids in response_ids]

    def one(ids: list[int]) -> float:
        grams = [tuple(ids[first : first + n]) for first in range(len(ids) - n + 1)]
        return len(set(grams)) / len(grams) - 1.0 if grams else 0.0

    return score


def compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise TelescopeError(f"{name}: {pattern!r} is not a regular expression: {error}") from None
