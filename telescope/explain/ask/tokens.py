"""A question as tokens: concepts that Chinese, English and symbols share, and pieces of the text.

`words` reads meaning: `V_t`, 价值 and `values` are all the concept `=value`; what no concept covers
stays a stemmed English word, an identifier or a pair of Chinese characters. `pieces` reads form:
every Chinese character and pair of characters, and every three letters of an English word, so that
a typo costs little.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator

from telescope.explain.words import toml

_GREEK = {
    "λ": " lam ",
    "γ": " gamma ",
    "δ": " delta ",
    "β": " beta ",
    "ε": " eps ",
    "ρ": " ratio ",
    "π": " policy ",
    "σ": " std ",
    "μ": " average ",
    "∑": " sum ",
    "â": " whitened ",
    "∞": " infinity ",
}
"""Lower-case, as `normalise` leaves them. NFKC turns ₜ into t."""

_HAN = "\u3400-\u9fff"
_INDEX = r"(?:_?\{?\(?\[?(?:s_?)?[tikn0-9][+\-0-9ti ]*\]?\)?\}?)"
_SYMBOLS = (
    (re.compile(rf"(?<![A-Za-z])V(?:[_(\[]|{_INDEX}|(?![A-Za-z]))"), " value "),
    (re.compile(rf"(?<![A-Za-z_])A(?=[_(\[\^]|{_INDEX}|\s*[=<>{_HAN}])"), " advantage "),
    (re.compile(rf"(?<=[{_HAN}\s])A(?=[\s,，。、?？]*$|[{_HAN}、，])"), " advantage "),
    (re.compile(rf"(?<![A-Za-z_-])R(?=[_(\[]|{_INDEX}|\s*[=<>{_HAN}])"), " return "),
    (re.compile(rf"(?<![A-Za-z_])r(?=[_(\[]|{_INDEX}(?![A-Za-z]))"), " reward "),
    (re.compile(r"(?<![A-Za-z_])G(?=[_(\[0-9]|\s*[=<>-])"), " mc return "),
)
"""Symbols of the notation; which letter it is depends on its case and on what follows."""

_WORD = re.compile(r"[a-z][a-z0-9]*(?:[_/.^][a-z0-9]+)*|\d+(?:\.\d+)?")
_SET_TO = re.compile(
    r"\b(lam|lambda|gamma|beta|eps)\s*(?:=|==|为|取|是|等于|设为|设成|to|of|is|equals)?\s*"
    r"(\d*\.?\d+)"
)
_CHINESE = re.compile(f"[{_HAN}]+")
_SUFFIXES = ("ations", "ation", "ingly", "edly", "ings", "ing", "ies", "ied", "ed", "es", "ly", "s")


@functools.lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """One form of every character, symbols as words, lower-case."""
    text = unicodedata.normalize("NFKC", text.replace("Â", " whitened "))
    for pattern, name in _SYMBOLS:
        text = pattern.sub(name, text)
    text = text.lower()
    for letter, name in _GREEK.items():
        text = text.replace(letter, name)
    return text


@functools.lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """The word without its ending: values and value, clipped and clip are one."""
    if len(word) <= 3 or not word.isalpha():
        return word
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeols":
        word = word[:-1]
    if word.endswith("e") and len(word) > 3:
        word = word[:-1]
    if word.endswith("i") and len(word) > 3:
        word = word[:-1] + "y"
    return word


class _Lexicon:
    """The synonyms and stop words of words.toml."""

    def __init__(self) -> None:
        data = toml("ask/words.toml")
        self.concepts: dict[str, list[str]] = {}
        for concept, phrases in data["concepts"].items():
            for phrase in phrases:
                key = _key(phrase)
                found = self.concepts.setdefault(key, [])
                if concept not in found:
                    found.append(concept)
        self.foreign_zh = _longest_first(set(data["foreign"]["zh"]))
        self.foreign_en = {_key(phrase) for phrase in data["foreign"]["en"]}
        self.stop = {stem(word) for word in data["stop"]["en"]}
        chinese = {phrase for phrase in self.concepts if _CHINESE.search(phrase)}
        self.chinese = _longest_first(chinese | set(data["stop"]["zh"]))
        english = {phrase for phrase in self.concepts if not _CHINESE.search(phrase)}
        self.most_words = max(len(phrase.split()) for phrase in english)


def _key(phrase: str) -> str:
    """A phrase as it is looked up: English in stems, Chinese as it stands."""
    text = normalise(phrase).strip()
    if _CHINESE.search(text):
        return re.sub(r"\s+", "", text)
    return " ".join(stem(word) for word in text.split())


def _longest_first(phrases: set[str]) -> re.Pattern[str]:
    ordered = sorted(phrases, key=len, reverse=True)
    return re.compile("|".join(re.escape(phrase) for phrase in ordered))


@functools.cache
def _lexicon() -> _Lexicon:
    return _Lexicon()


@functools.lru_cache(maxsize=4096)
def words(text: str) -> tuple[str, ...]:
    """Concepts (`=value`), identifiers, stems, and pairs of Chinese characters, each once."""
    normal = normalise(text)
    found = [*_settings(normal), *_english(normal), *_chinese(normal)]
    return tuple(dict.fromkeys(found))


def _settings(normal: str) -> Iterator[str]:
    """λ=1 is a token of its own: which value is meant may be the whole question."""
    for name, number in _SET_TO.findall(normal):
        key = "lam" if name.startswith("lam") else name
        yield f"{key}={float(number):g}"


def _english(normal: str) -> Iterator[str]:
    lexicon = _lexicon()
    run: list[str] = []
    for match in _WORD.finditer(normal):
        word = match[0]
        whole = stem(word)
        if whole in lexicon.concepts:
            run.append(whole)
            continue
        parts = re.split(r"[_/.^]", word)
        if len(parts) > 1 and not word[0].isdigit():
            yield word
            run += [stem(part) for part in parts]
        else:
            run.append(whole)
    at = 0
    while at < len(run):
        size = min(lexicon.most_words, len(run) - at)
        while size > 1 and " ".join(run[at : at + size]) not in lexicon.concepts:
            size -= 1
        phrase = " ".join(run[at : at + size])
        if phrase in lexicon.concepts:
            yield from (f"={concept}" for concept in lexicon.concepts[phrase])
        elif phrase not in lexicon.stop and len(phrase) > 1:
            yield phrase
        at += size


@functools.lru_cache(maxsize=4096)
def foreign(text: str) -> frozenset[str]:
    """The things that a message names and that no text of ours is about."""
    lexicon = _lexicon()
    normal = normalise(text)
    stems = [stem(word) for word in re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", normal)]
    spans = [
        " ".join(stems[at : at + size]) for size in (1, 2, 3) for at in range(len(stems) - size + 1)
    ]
    named = {span for span in spans if span in lexicon.foreign_en}
    return frozenset(named | set(lexicon.foreign_zh.findall(normal)))


def _chinese(normal: str) -> Iterator[str]:
    lexicon = _lexicon()
    # Chinese people write `td 误差` with and without the space.
    compact = re.sub(rf"(?<=[a-z0-9])\s+(?=[{_HAN}])|(?<=[{_HAN}])\s+(?=[a-z0-9])", "", normal)
    end = 0
    for match in lexicon.chinese.finditer(compact):
        yield from _pairs(compact[end : match.start()])
        phrase = match[0]
        if phrase in lexicon.concepts:
            yield from (f"={concept}" for concept in lexicon.concepts[phrase])
        end = match.end()
    yield from _pairs(compact[end:])


def _pairs(text: str) -> Iterator[str]:
    """Pairs of neighbouring Chinese characters; a lone character by itself."""
    for run in _CHINESE.findall(text):
        yield from _parts(run, 2) or [run]


def _parts(text: str, length: int) -> list[str]:
    """Every part of this length."""
    return [text[i : i + length] for i in range(len(text) - length + 1)]


@functools.lru_cache(maxsize=4096)
def pieces(text: str) -> tuple[str, ...]:
    """Chinese characters and their pairs, and English words in threes."""
    normal = normalise(text)
    found: list[str] = []
    for run in _CHINESE.findall(normal):
        found += [*run, *_parts(run, 2)]
    for word in _WORD.findall(normal):
        found += _parts(f"<{word}>", 3)
    return tuple(found)


def is_chinese(text: str) -> bool:
    """Whether a question is asked in Chinese, with or without English terms."""
    return _CHINESE.search(text) is not None
