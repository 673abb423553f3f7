"""The tour's sentences: which of them are true for an answer, with its numbers filled in.

tour.toml has them. A sentence belongs to a slot of a step. Of a slot's sentences the first is said
whose condition `when` holds; `claim` is what it says, which a test compares with the numbers.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from telescope.explain.claims import evaluate, names_in
from telescope.explain.text import about
from telescope.viewer.tour_facts import Calculation, Facts, Sum

SKINS = ("zh", "en", "kid_zh", "kid_en")
"""Two languages, each for an expert and for a twelve-year-old."""
ROUNDED = {"zh": "，有舍入", "en": ", rounded"}
ALMOST = {"zh": "几乎 0", "en": "almost 0"}
NOUNS = {
    "zh": ("token", "token"),
    "en": ("token", "token"),
    "kid_zh": ("词", "符号"),
    "kid_en": ("word", "sign"),
}
"""What a token is called: a word, or else a sign."""
SPECIAL = re.compile(r"<[^<>]*>")
_PLACE = re.compile(r"\{(\w+)(?::([^}]*))?\}")


@dataclass(frozen=True)
class Sentence:
    """One sentence in every language and level, when to say it, and what it claims."""

    slot: str
    texts: Mapping[str, str]
    when: str = "True"
    claim: str = "True"

    def holds(self, facts: Facts) -> bool:
        return self.known(facts) and bool(evaluate(self.when, facts))

    def known(self, facts: Facts) -> bool:
        """Whether the answer has every fact that the sentence names."""
        return self.names <= facts.keys()

    @functools.cached_property
    def names(self) -> frozenset[str]:
        filled = {found[0] for text in self.texts.values() for found in _PLACE.findall(text)}
        return names_in(self.when) | names_in(self.claim) | filled

    def said(self, skin: str, facts: Facts) -> str:
        """The sentence with its numbers."""

        def number(found: re.Match[str]) -> str:
            return _shown(facts[found[1]], found[2] or "", skin)

        return _PLACE.sub(number, self.texts[skin])


@dataclass(frozen=True)
class StepTexts:
    """What a step of the tour says before and after the guess."""

    id: str
    needs: tuple[str, ...]
    titles: Mapping[str, str]
    symbols: Mapping[str, str]
    ask: tuple[Sentence, ...]
    reveal: tuple[Sentence, ...]


def chosen(sentences: tuple[Sentence, ...], facts: Facts) -> list[Sentence]:
    """The first sentence of every slot that holds, in the order of the slots."""
    found: dict[str, Sentence] = {}
    for sentence in sentences:
        if sentence.slot not in found and sentence.holds(facts):
            found[sentence.slot] = sentence
    order = list(dict.fromkeys(sentence.slot for sentence in sentences))
    return [found[slot] for slot in order if slot in found]


def paragraph(sentences: list[Sentence], skin: str, facts: Facts) -> list[str]:
    return [text for text in (sentence.said(skin, facts) for sentence in sentences) if text]


@functools.cache
def steps() -> dict[str, StepTexts]:
    """Every step by its id."""
    data = _data()
    return {name: _step(name, found) for name, found in data["step"].items()}


def option_texts(name: str) -> dict[str, str]:
    """An answer to choose, in every language and level."""
    found: dict[str, str] = _every_skin(_data()["option"][name])
    return found


@functools.cache
def _data() -> dict[str, Any]:
    text = (files("telescope.viewer") / "tour.toml").read_text("utf-8")
    return tomllib.loads(text)


def _step(name: str, data: dict[str, Any]) -> StepTexts:
    return StepTexts(
        id=name,
        needs=tuple(data.get("needs", ())),
        titles=_every_skin(data["title"]),
        symbols=_every_skin(data["symbol"]),
        ask=tuple(_sentence(name, row) for row in data["ask"]),
        reveal=tuple(_sentence(name, row) for row in data["reveal"]),
    )


def _sentence(step: str, row: dict[str, Any]) -> Sentence:
    conditions = {key: row[key] for key in ("when", "claim") if key in row}
    return Sentence(row.get("slot", "1"), _every_skin(row), **conditions)


def _every_skin(row: Mapping[str, str]) -> dict[str, str]:
    """A child hears what the others hear where nothing else is written."""
    return {skin: row.get(skin, row[skin.removeprefix("kid_")]) for skin in SKINS}


# ---- numbers ----


def short(x: float) -> str:
    """At most three decimals: 0.7, −0.63, 0.111; 3e−05 for what they would show as 0."""
    text = f"{x:.3f}".rstrip("0").rstrip(".")
    if text in ("0", "-0"):
        text = "0" if abs(x) < 1e-12 else f"{x:.0e}".replace("e-0", "e-")
    return text.replace("-", "−")


def points(x: float) -> str:
    """For a child a score of 1 is 100 points; one decimal."""
    text = f"{100 * x:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text.replace("-", "−")


def _signed(text: str, x: float) -> str:
    return f"+{text}" if x > 0 and text != "0" else text


def _shown(value: Any, how: str, skin: str) -> str:
    if isinstance(value, Sum):
        return _equation(value, skin)
    if isinstance(value, Calculation):
        return _calculation(value)
    if isinstance(value, str):
        return NOUNS[skin][_is_sign(value)] if how == "noun" else value
    is_kid = skin.startswith("kid_")
    sign = how.startswith("+")
    kind = how.removeprefix("+")
    if kind == "d":
        return str(int(value))
    if kind == "%":
        return f"{short(round(100 * value, 1))} %"
    if kind == "change":  # of a factor: how much more or less
        return f"{short(round(100 * abs(value - 1), 1))} %"
    if kind == "x":  # a factor or a number without a unit
        text = about(value, ALMOST[skin.removeprefix("kid_")]) if is_kid else short(value)
    else:
        text = points(value) if is_kid else short(value)
    return _signed(text, value) if sign else text


def _equation(given: Sum, skin: str) -> str:
    """0.02 + 0.05 − 0.7 = −0.63; "≈ −0.63, rounded" where the written numbers do not add up."""
    write: Callable[[float], str] = points if skin.startswith("kid_") else short
    out = ""
    printed = 0.0
    for place, x in enumerate(given.terms):
        factor = given.factors.get(place)
        size = write(abs(x))
        written = _number(size)
        if factor is not None and write is short:
            size = f"{short(factor)}·{short(abs(x) / factor)}"
            written = _number(short(factor)) * _number(short(abs(x) / factor))
        printed += math.copysign(written, x)
        minus = x < 0 and size != "0"
        out += size if not out and not minus else f" − {size}" if minus else f" + {size}"
    out = out.removeprefix(" ").replace("− ", "−", 1) if given.terms[0] < 0 else out
    result = write(given.result)
    if abs(printed - _number(result)) < 1e-9:
        return f"{out} = {result}"
    return f"{out} ≈ {result}{ROUNDED.get(skin, '')}"


def _calculation(given: Calculation) -> str:
    """0.781 / 0.344 ≈ 2.272; = where the written numbers give the written result."""
    first, second = (_number(short(x)) for x in (given.first, given.second))
    follows = first * second if given.sign == "×" else first / second if second else math.inf
    result = short(given.result)
    equals = "=" if short(follows) == result else "≈"
    return f"{short(given.first)} {given.sign} {short(given.second)} {equals} {result}"


def _is_sign(token: str) -> bool:
    """Punctuation, spaces and special tokens are no words."""
    return SPECIAL.fullmatch(token) is not None or not any(c.isalnum() for c in token)


def _number(text: str) -> float:
    return float(text.replace("−", "-"))
