"""A term's text says what it claims: reverse its meaning, and this test fails.

The claim is checked against numbers in test_trace_texts, what the text says against a record
(tests/explain/says.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from telescope.algorithms.definitions.base import Words
from tests.explain.says import both, claiming, said
from tests.explain.test_reversed import OPPOSITES, reversals

pytestmark = pytest.mark.slow

MORE_OPPOSITES = {
    "zh": [
        ("后面", "前面"), ("不计入", "计入"), ("不会", "会"), ("越少", "越多"), ("含", "不含"),
        ("照常", "为 0"), ("相同", "不同"), ("全部", "都不"), ("无关", "有关"),
        ("区间内", "区间外"), ("未裁剪", "裁剪后"), ("过大", "过小"), ("就是", "不是"),
    ],
    "en": [
        ("later", "earlier"), ("less", "plus"), ("included", "left out"), ("flows", "is 0"),
        ("the same", "different"), ("cancel", "stay"), ("unclipped", "clipped"),
        ("nothing", "much"), ("wins", "loses"), ("inside", "outside"), ("do not", "do"),
    ],
}  # fmt: skip
"""Besides those of the answers."""


def changed(text: str, lang: str) -> Iterator[str]:
    yield from reversals(text, lang)
    for one, other in MORE_OPPOSITES[lang]:
        if one in text:
            yield text.replace(one, other, 1)


@pytest.mark.parametrize("words", [words for _, words in claiming()], ids=lambda words: words.claim)
def test_a_text_that_claims_says_something_in_both_languages(words: Words) -> None:
    assert all(both(words))


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_reversed_text_is_caught(lang: str) -> None:
    tried = 0
    missed = []
    for _, words in claiming():
        text = words.zh if lang == "zh" else words.en
        for other in changed(text, lang):
            tried += 1
            if said(other, lang) == said(text, lang):
                missed.append((text, other))
    assert missed == []
    assert tried > 60
    assert OPPOSITES.keys() == MORE_OPPOSITES.keys()
