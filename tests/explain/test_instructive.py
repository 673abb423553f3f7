"""Every view is about the same token unless the reader chooses one."""

from __future__ import annotations

import re

import pytest

from telescope.explain.arithmetic import fill
from telescope.explain.example import BATCH, WRONG
from telescope.explain.instructive import instructive, is_punctuation
from telescope.explain.numbers import from_numbers
from telescope.explain.stages import flow
from telescope.explain.terminal import render
from tests.explain.samples import demo, with_tool


def chosen(text: str) -> int:
    """The token that a screen marks."""
    return int(re.search(r"^▶ *(\d+)", text, re.MULTILINE)[1])


@pytest.mark.parametrize("sample", [*BATCH, demo(), with_tool()])
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_expert_child_and_drawing_choose_the_same_token(sample, lang):
    expected = instructive(fill(sample))
    for level in ("expert", "kid"):
        for extent in ("first", "token"):
            text = render(sample, lang=lang, level=level, extent=extent, width=80, color=False)
            assert chosen(text) == expected
    assert f"i = {expected} «" in flow(sample, lang, 80)


def test_the_wrong_answer_is_about_its_wrong_digit():
    assert WRONG.token_bytes[instructive(fill(WRONG))] == b"3"


def response(tokens: list[str], advantages: list[float]) -> int:
    return instructive(fill(from_numbers({"tokens": tokens, "advantages": advantages})))


def test_neither_punctuation_nor_the_last_token_is_chosen():
    assert response(["a", "，", "b", "！"], [0.1, -0.9, -0.2, 3.0]) == 2
    assert response(["a", "+", "b", "！"], [0.1, -0.9, -0.2, 3.0]) == 1


def test_punctuation_is_chosen_where_there_is_nothing_else():
    assert response(["，", "。", "b"], [0.1, -0.9, 3.0]) == 1
    assert response(["！"], [0.1]) == 0


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["a", "b", "c"], "largest |A| before the last token"),
        (["a", "，", "c"], "largest |A| of an earlier word"),
    ],
)
def test_the_screen_says_why_it_is_about_this_token(tokens, said):
    sample = from_numbers({"tokens": tokens, "advantages": [0.1, 0.2, 3.0]})
    assert said in render(sample, lang="en", width=80, color=False)
    same = from_numbers({"tokens": tokens, "advantages": [0.5, 0.5, 0.5]})
    assert "every token has the same A" in render(same, lang="en", width=80, color=False)


@pytest.mark.parametrize(
    ("text", "expected"), [("，", True), ("!␣", True), ("↵", True), ("=", False), ("是", False)]
)
def test_signs_and_letters_are_no_punctuation(text, expected):
    assert is_punctuation(text) == expected
