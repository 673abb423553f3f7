"""Finds the words that carry the meaning of a text, and compares them with what it says it says.

python -m tests.explain.says [FILE.toml ...]      lists sentences whose `says` does not match
python -m tests.explain.says --write FILE.toml    fills in `says`; read the result

FILE.toml is one of the answers, or has the texts of terms: explain/words.toml, definitions/texts.toml.
"""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

LEXICON = Path(__file__).with_name("lexicon.toml")
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


FIELDS = ("zh", "en", "kid_zh", "kid_en")


def entries(path: Path) -> Iterator[tuple[str, dict]]:
    """(question, sentence) of a file."""
    for key, entry in tomllib.loads(path.read_text("utf-8")).items():
        for say in entry["say"]:
            if "table" not in say:
                yield key, say


def mismatches(say: dict) -> list[str]:
    """Texts of an entry that do not say what they declare."""
    out = []
    for field in FIELDS:
        if field in say:
            really = said(say[field], field[-2:])
            declared = say.get(f"says_{field}", "")
            if really != declared:
                out.append(f"{field} says {really!r}, declared {declared!r}")
    return out


def _write(path: Path) -> None:
    """Puts `says_…` lines behind every sentence."""
    blocks = re.split(r"(?m)^(?=\[)", path.read_text("utf-8"))
    out = []
    for block in blocks:
        is_sentence = block.startswith("[[") and "\ntable" not in block
        is_term = block.startswith("[") and "\nclaim = " in block
        if not is_sentence and not is_term:
            out.append(block)
            continue
        say = _innermost(tomllib.loads(block))
        kept = re.sub(r"(?m)^says(_\w+)? = .*\n?", "", block)
        body = kept.rstrip("\n")
        tail = block[len(block.rstrip("\n")) :]
        fields = FIELDS if is_sentence else FIELDS[:2]
        lines = [
            f'says_{field} = "{said(say[field], field[-2:])}"' for field in fields if field in say
        ]
        out.append("\n".join([body, *lines]) + tail)
    path.write_text("".join(out), "utf-8")


def _innermost(block: dict) -> dict:
    """The entry that a block of one table holds, whatever the table's name."""
    while len(block) == 1 and isinstance(next(iter(block.values())), (dict, list)):
        (block,) = block.values()
        block = block[0] if isinstance(block, list) else block
    return block


def main(arguments: list[str]) -> None:
    paths = [Path(each) for each in arguments if each != "--write"]
    if "--write" in arguments:
        for path in paths:
            _write(path)
    for path in paths:
        if path.parent.name != "answers":
            continue  # terms: tests/explain/test_reversed_terms.py
        for key, say in entries(path):
            for wrong in mismatches(say):
                print(path.name, key, wrong)


if __name__ == "__main__":
    main(sys.argv[1:])
