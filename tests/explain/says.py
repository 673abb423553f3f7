"""The words that carry the meaning of a text, and the record of those that every text has.

Who rewords a sentence writes the record anew, and reads what changed in it:

    python -m tests.explain.says
    git diff tests/explain/golden/says.toml
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from telescope.algorithms.definitions import texts as definition_texts
from telescope.algorithms.definitions.base import Words
from telescope.explain.questions import Question, Sentence, questions
from telescope.explain.words import texts, words_of_term

LEXICON = Path(__file__).with_name("lexicon.toml")
RECORD = Path(__file__).parent / "golden" / "says.toml"
Said = dict[str, list[list[str]]]
"""Question, or term, -> what each of its sentences says in Chinese and in English."""

_PLACE = re.compile(r"\{[^{}]*\}")
_CODE = re.compile(r"`[^`]*`")
_NUMBER = re.compile(r"(?<![\w.⁻_\[^/-])\d+(?:\.\d+)?(?![\w\]])")


@functools.cache
def _phrases(lang: str) -> list[tuple[re.Pattern[str], str]]:
    """(pattern, key), longest phrase first."""
    table = tomllib.loads(LEXICON.read_text("utf-8"))
    pairs = [(phrase, key) for key, entry in table.items() for phrase in entry[lang]]
    pairs.sort(key=lambda pair: -len(pair[0]))
    if lang == "zh":
        return [(re.compile(re.escape(phrase)), key) for phrase, key in pairs]
    out = []
    for phrase, key in pairs:
        word = re.escape(phrase)
        pattern = word if phrase == "n't" else rf"\b{word}\b"
        out.append((re.compile(pattern, re.IGNORECASE), key))
    return out


@functools.cache
def said(text: str, lang: str) -> str:
    """The keys of the text in order, separated by spaces; numbers written out count too."""
    left = _CODE.sub(lambda m: " " * len(m[0]), _PLACE.sub(lambda m: "x" * len(m[0]), text))
    at = [(m.start(), m[0]) for m in _NUMBER.finditer(left)]
    for pattern, key in _phrases(lang):
        matches = list(pattern.finditer(left))
        left = pattern.sub(lambda m: "\x1f" * len(m[0]), left)
        if key != "neutral":
            at += [(m.start(), key) for m in matches]
    return " ".join(key for _, key in sorted(at))


def both(text: Sentence | Words) -> list[str]:
    return [said(text.zh, "zh"), said(text.en, "en")]


def sentences(question: Question) -> list[Sentence]:
    return [sentence for sentence in question.sentences if not sentence.table]


def claiming() -> Iterator[tuple[str, Words]]:
    """Every text of a term that makes a claim."""
    for family, entries in definition_texts.FAMILIES.items():
        yield from ((f"{family}.{key}", words) for key, words in entries.items() if words.claim)
    every = ((key, words_of_term(key)) for key in texts()["expert"])
    yield from ((key, words) for key, words in every if words.claim)


def now() -> Said:
    """What all texts say as they are."""
    found = {key: [both(each) for each in sentences(q)] for key, q in questions().items()}
    return found | {key: [both(words)] for key, words in claiming()}


@functools.cache
def recorded() -> Said:
    return tomllib.loads(RECORD.read_text("utf-8"))


def write() -> None:
    lines = []
    for key, found in now().items():
        pairs = "".join(f"  {json.dumps(pair)},\n" for pair in found)
        lines.append(f"{json.dumps(key)} = [\n{pairs}]\n")
    RECORD.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    write()
