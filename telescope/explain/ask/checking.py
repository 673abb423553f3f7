"""Whether the numbers of a text are ours, and belong to what they belong to in our facts.

foreign_number("A is 0.77", "A = 0.39, δ = 0.11")                  0.77
moved_number("A is 0.11 and δ is 0.39", "A = 0.39, δ = 0.11")      A is 0.11
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from telescope.explain.symbols import symbols

_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_NUMBER = re.compile(r"(?<![\d.])(-?)(\d+(?:\.\d+)?|\.\d+)(?:e([+-]?\d+))?(\s*%)?", re.IGNORECASE)
_WORDS_EN = (
    "two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred "
    "thousand million half third quarter twice double triple"
)
_WORD_EN = re.compile(rf"\b(?:{'|'.join(_WORDS_EN.split())})\b", re.IGNORECASE)
_WORD_ZH = re.compile("[零二两三四五六七八九十百千万亿半]+")


# ---- whether they are ours ----


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


# ---- what they belong to ----

_NAMES = {
    "V": "values",
    "δ": "TD error, TD 误差, TD误差, surprise, 惊喜, deltas",
    "A": "advantage, advantages, 优势, credit, 功劳",
    "Â": "whitened advantage, 白化后的优势, compared credit, 比一比的功劳, whitened",
    "R": "return, returns, 回报",
    "r": "reward, 奖励, mark, 小分",
    "ρ": "ratio, 比率",
    "γ": "gamma, discount, 折扣",
    "λ": "lambda, lam",
    "β": "beta, kl_coef",
}
"""Symbol -> words that stand for it in a sentence."""
_INDEX = r"(?:\[(\d+)\])?"
_OF_TOKEN = r"(?:\s*(?:of|at|for|on)\s+token\s+(\d+))?"  # noqa: S105 -- a token of text
_LINKS = (
    r"=|≈|:|：|\b(?:is|are|was|were|of|equals?|equal|to|about|roughly|exactly|only|just|now|becomes)\b"
    r"|的值|值|是|为|等于|约|大概|只有|恰好|正好|就|即"
)
_LINK = rf"(?:\s*(?:{_LINKS}))+\s*|\s+(?=-?\d*\.\d)"
_PART = re.compile(
    r"\d*\.?\d+(?:e[-+]?\d+)?|[-+·×*/^()½√|\s%.]"
    r"|[^\W\d_](?:_[a-z]+)?(?:\[\w+\+?\])?(?![^\W\d_])"
)
"""A number, a sign or a symbol of a formula."""
_TABLE_HEAD = re.compile(r"\s*i\s+token\s\s+(\S.*)")


@dataclass(frozen=True)
class _Owned:
    """A number and the quantity that it is the number of."""

    symbol: str
    index: int | None
    shown: str
    value: float
    step: float

    def fits(self, other: _Owned) -> bool:
        """Whether the other one is the same quantity, as far as both say which token it is of."""
        both_say = self.index is not None and other.index is not None
        return self.symbol == other.symbol and not (both_say and self.index != other.index)

    def is_number_of(self, said: _Owned) -> bool:
        """Whether what is said is this number, or this one rounded."""
        return _rounds_to(self.value, said.value, said.step)


def moved_number(text: str, ours: str) -> str | None:
    """The first number of `text` that `ours` has, but as the number of another quantity.

    A number belongs to the symbol or name just before it: A = 0.3, A is 0.3, A[3] 是 0.3, λ of 0.9.
    """
    facts = list(_owned(ours))
    for said in _owned(text):
        own = [fact for fact in facts if fact.fits(said)]
        exact = [fact for fact in own if fact.index == said.index is not None]
        if own:
            is_right = any(fact.is_number_of(said) for fact in exact or own)
        else:  # our facts name it in other words: then the number must not be another's
            is_right = not any(fact.is_number_of(said) for fact in facts)
        if not is_right:
            return said.shown
    return None


def _owned(text: str) -> Iterator[_Owned]:
    """Every number that stands right behind a symbol, behind its formula, or in its column."""
    plain = re.sub("[₀-₉]+", lambda match: f"[{unicodedata.normalize('NFKC', match[0])}]", text)
    plain = _SUPERSCRIPT.sub(" ^x", plain)
    plain = unicodedata.normalize("NFKC", plain).replace("−", "-").replace("`", "")
    yield from _in_tables(plain)
    for found in _owner_pattern().finditer(plain):
        before = plain[: found.start()].rstrip()[-1:]
        if before and before in "+-·×*/^":
            continue  # the last part of a formula
        index = found[2] or found[3]
        for shown, value, step in _results(plain, found.end()):
            said = f"{plain[found.start() : found.end()]}{shown}"
            at = None if index is None else int(index)
            yield _Owned(_symbol_of()[found[1]], at, said, value, step)


def _results(plain: str, start: int) -> Iterator[tuple[str, float, float]]:
    """The numbers that stand alone between equality signs: 0.3 of `1 − 0.7 = 0.3`."""
    while True:
        end = start
        while part := _PART.match(plain, end):
            end = part.end()
        formula = plain[start:end].strip().rstrip(".").rstrip()
        number = _numbers(formula)
        if len(number) == 1 and number[0][0] == formula:
            yield number[0]
        if plain[end : end + 1] != "=":
            return
        start = end + 1


def _in_tables(plain: str) -> Iterator[_Owned]:
    """The cells of a table of tokens, by the heads of its columns."""
    heads: list[str] = []
    for line in plain.split("\n"):
        head = _TABLE_HEAD.fullmatch(line)
        if head:
            heads = [name.split(" ")[0] for name in re.split(r"\s{2,}", head[1].strip())]
            continue
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) != len(heads) + 2 or not cells[0].isdigit():
            continue
        for symbol, cell in zip(heads, cells[2:], strict=True):
            for shown, value, step in _numbers(cell):
                yield _Owned(symbol, int(cells[0]), f"{symbol}[{cells[0]}] {shown}", value, step)


@functools.cache
def _symbol_of() -> dict[str, str]:
    """A symbol as it may be written, or a name for it -> the symbol of the table."""
    found = {name: symbol for symbol, names in _NAMES.items() for name in names.split(", ")}
    for row in symbols():
        found |= {unicodedata.normalize("NFKC", row.symbol): row.symbol}
        found |= {name: name for name in row.also if name.startswith(f"{row.symbol}_")}
    return found


@functools.cache
def _owner_pattern() -> re.Pattern[str]:
    """A symbol or name with its index, and what links it to a number."""
    names = sorted(_symbol_of(), key=len, reverse=True)
    either = "|".join(re.escape(name) for name in names)
    return re.compile(rf"(?<![A-Za-z_])({either})(?![A-Za-z_]){_INDEX}{_OF_TOKEN}(?:{_LINK})")
