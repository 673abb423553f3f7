"""Finds the words that carry the meaning of a text, and compares them with what it says it says.

python -m tests.explain.says [FILE.toml ...]      lists sentences whose `says` does not match
python -m tests.explain.says --write FILE.toml    fills in `says`; read the result
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
def found(text: str, lang: str) -> frozenset[str]:
    """The keys of the text; numbers written out in it count too."""
    left = _CODE.sub(" ", _PLACE.sub("x", text))
    keys = set(_NUMBER.findall(left))
    for pattern, key in _phrases(lang):
        left, count = pattern.subn("␟", left)
        if count and key != "neutral":
            keys.add(key)
    return frozenset(keys)


def expected(says: tuple[str, ...], lang: str) -> frozenset[str]:
    """What `says` asks of one language: a key may be limited to one by `.zh` or `.en`."""
    keys = set()
    for key in says:
        word, dot, only = key.rpartition(".")
        if dot and only in ("zh", "en"):
            if only == lang:
                keys.add(word)
        else:
            keys.add(key)
    return frozenset(keys)


def signature(zh: str, en: str) -> list[str]:
    """`says` of a text as it stands."""
    in_zh = found(zh, "zh")
    in_en = found(en, "en")
    both = sorted(in_zh & in_en)
    return [
        *both,
        *(f"{k}.zh" for k in sorted(in_zh - in_en)),
        *(f"{k}.en" for k in sorted(in_en - in_zh)),
    ]


def mismatches(zh: str, en: str, says: tuple[str, ...]) -> list[str]:
    """What the text says in either language without declaring it, or declares without saying it."""
    out = []
    for lang, text in (("zh", zh), ("en", en)):
        undeclared = found(text, lang) - expected(says, lang)
        unsaid = expected(says, lang) - found(text, lang)
        out += [f"{lang} says {key!r}, not declared" for key in sorted(undeclared)]
        out += [f"{lang} does not say {key!r}" for key in sorted(unsaid)]
    return out


def _entries(path: Path) -> Iterator[tuple[str, dict]]:
    for key, entry in tomllib.loads(path.read_text("utf-8")).items():
        for say in entry["say"]:
            if "table" not in say:
                yield key, say


def _texts(say: dict) -> tuple[str, str]:
    """The two languages; an expert's and a child's text of one entry are read together."""
    zh = " ".join(say[key] for key in ("zh", "kid_zh") if key in say)
    en = " ".join(say[key] for key in ("en", "kid_en") if key in say)
    return zh, en


def _write(path: Path) -> None:
    """Puts a `says` line behind every sentence that has none or another."""
    blocks = re.split(r"(?m)^(?=\[)", path.read_text("utf-8"))
    out = []
    for block in blocks:
        if not block.startswith("[[") or "\ntable" in block:
            out.append(block)
            continue
        say = next(iter(tomllib.loads(block).values()))["say"][0]
        wanted = ", ".join(f'"{key}"' for key in signature(*_texts(say)))
        body = re.sub(r"(?m)^says = .*\n", "", block).rstrip("\n")
        tail = block[len(block.rstrip("\n")) :]
        out.append(f"{body}\nsays = [{wanted}]{tail}")
    path.write_text("".join(out), "utf-8")


def main(arguments: list[str]) -> None:
    paths = [Path(each) for each in arguments if each != "--write"]
    if "--write" in arguments:
        for path in paths:
            _write(path)
    for path in paths:
        for key, say in _entries(path):
            wrong = mismatches(*_texts(say), tuple(say.get("says", ())))
            if wrong:
                print(path.name, key, say.get("en", say.get("kid_en", ""))[:60], "->", wrong)


if __name__ == "__main__":
    main(sys.argv[1:])
