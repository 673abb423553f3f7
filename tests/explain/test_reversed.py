"""A text whose meaning is reversed no longer says what is recorded of it.

Every sentence is reversed in every way that its words allow: one word is replaced by its opposite,
or a "not" is put in or taken out.
"""

from __future__ import annotations

import re

import pytest

from telescope.explain.questions import questions
from tests.explain.says import said

pytestmark = pytest.mark.slow

OPPOSITES = {
    "en": [
        ("before", "after"), ("larger", "smaller"), ("more likely", "less likely"),
        ("equal to", "different from"), ("positive", "negative"), ("above", "below"),
        ("rises", "falls"), ("higher", "lower"), ("first", "last"), ("yes", "no"),
        ("adds", "subtracts"), ("old", "new"), ("all", "none"), ("every", "no"),
        ("more", "less"), ("right", "wrong"), ("multiplies", "divides"), ("toward", "away from"),
        ("is", "is not"), ("are", "are not"), ("not ", ""), ("never", "always"), ("only ", ""),
    ],
    "zh": [
        ("之前", "之后"), ("大于", "小于"), ("更可能", "更不可能"), ("等于", "不等于"),
        ("为正", "为负"), ("高于", "低于"), ("上升", "下降"), ("更大", "更小"), ("最后", "最先"),
        ("加上", "减去"), ("旧", "新"), ("所有", "没有"), ("每个", "没有"), ("变大", "变小"),
        ("乘", "除以"), ("正确", "错误"), ("靠近", "远离"), ("是", "不是"), ("没有", "有"),
        ("不等于", "等于"), ("从不", "总是"), ("只", ""),
    ],
}  # fmt: skip


_PLACE = re.compile(r"\{[^{}]*\}")
"""The place of a number: its name is not a word of the text."""


def reversals(text: str, lang: str) -> list[str]:
    """The text with one word replaced by its opposite, for each word that has one."""
    out = []
    for one, other in OPPOSITES[lang]:
        for here, there in ((one, other), (other, one)):
            if not here:
                continue
            word = re.escape(here)
            pattern = word if lang == "zh" or here.endswith(" ") else rf"(?<!{{)\b{word}\b"
            changed = re.sub(pattern, there, text, count=1, flags=re.IGNORECASE)
            same_places = _PLACE.findall(changed) == _PLACE.findall(text)
            if changed != text and same_places and not changed.startswith(text):
                out.append(changed)
    return out


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_reversed_texts_are_caught(lang, record_property) -> None:
    tried = 0
    missed = []
    for question in questions().values():
        for sentence in question.sentences:
            text = sentence.text(lang)
            for changed in reversals(text, lang):
                tried += 1
                if said(changed, lang) == said(text, lang):
                    missed.append(f"{question.id}: {text}  ->  {changed}")
    print(f"\n{lang}: {tried} reversals tried, {len(missed)} not caught")
    assert tried > 100
    assert not missed, "\n".join(missed[:20])
