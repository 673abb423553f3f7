"""The page's own words: both languages say the same things, and every word that is used exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "telescope" / "viewer" / "static"
TEXTS = STATIC / "texts"
NO_PANEL = ("kid", "metrics")
STRING = r'"(?:[^"\\]|\\.)*"'
ENTRY = re.compile(rf'^  "([^"]+)":\s*({STRING}(?:\s*\+\s*{STRING})*)', re.MULTILINE)
USED = re.compile(r'\bt\(\s*"([^"]+)"')
MADE = re.compile(r"\bt\(\s*`([^`$]*)\$\{")


def words(*files: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in files:
        entries = ENTRY.findall((TEXTS / name).read_text("utf-8"))
        assert len({key for key, _ in entries}) == len(entries), f"{name} has a key twice"
        assert not found.keys() & {key for key, _ in entries}, f"{name} has a key of another file"
        found |= dict(entries)
    return found


def language(lang: str) -> dict[str, str]:
    panels = [path.name for path in sorted(TEXTS.glob(f"*_{lang}.js"))]
    usual = [name for name in panels if not any(part in name for part in NO_PANEL)]
    return words(f"{lang}.js", *usual)


def child(lang: str) -> dict[str, str]:
    names = sorted(path.name for path in TEXTS.glob(f"*kid_{lang}.js"))
    return words(*names)


def modules() -> list[Path]:
    return [
        path
        for path in sorted(STATIC.rglob("*.js"))
        if not {"vendor", "texts"} & set(path.relative_to(STATIC).parts)
    ]


def places(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def test_both_languages_have_the_same_keys() -> None:
    english, chinese = language("en"), language("zh")
    assert english.keys() == chinese.keys()
    assert len(english) > 100


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_child_is_told_nothing_that_others_are_not(lang: str) -> None:
    assert child(lang).keys() <= language(lang).keys()


def test_a_text_has_the_same_places_in_every_language_and_level() -> None:
    english, chinese = language("en"), language("zh")
    for key in english:
        assert places(english[key]) == places(chinese[key]), key
    for lang, usual in (("en", english), ("zh", chinese)):
        for key, text in child(lang).items():
            assert places(text) <= places(usual[key]), (lang, key)


def test_every_word_that_is_used_exists() -> None:
    known = language("en")
    missing = [
        f"{path.relative_to(STATIC)}: {key}"
        for path in modules()
        for key in USED.findall(path.read_text("utf-8"))
        if key not in known
    ]
    assert missing == []


def test_every_word_is_used() -> None:
    code = "\n".join(path.read_text("utf-8") for path in modules())
    made = tuple(MADE.findall(code))
    unused = [
        key
        for key in language("en")
        if f'"{key}"' not in code and not (made and key.startswith(made))
    ]
    assert unused == []


def test_every_metric_of_the_docs_has_a_meaning() -> None:
    table = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    documented = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    for lang in ("en", "zh"):
        assert list(words(f"metrics_{lang}.js")) == documented
