"""How often the question that was meant is found, on wordings that the index has not seen."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from telescope.explain.ask.conversation import search
from telescope.explain.ask.index import ENOUGH
from telescope.explain.ask.wordings import ELSEWHERE, all_wordings
from telescope.explain.questions import questions

pytestmark = pytest.mark.slow

UNSEEN = tomllib.loads(Path(__file__).with_name("wordings.toml").read_text("utf-8"))
ASKED = [(key, text) for key, texts in UNSEEN["asked"].items() for text in texts]
LATER = [(key, text) for key, texts in UNSEEN["later"].items() for text in texts]
NONE = [text for texts in UNSEEN["none"].values() for text in texts]
LATER_NONE = [text for texts in UNSEEN["later_none"].values() for text in texts]


def found(text: str) -> list[str]:
    """The questions that a text may mean, the best first; empty if it is refused."""
    hits = search(text)
    if hits[0].score < ENOUGH or hits[0].id == ELSEWHERE:
        return []
    return [hit.id for hit in hits if hit.id != ELSEWHERE][:3]


def test_the_wordings_of_this_test_are_not_in_the_index() -> None:
    known = {text.strip().lower() for texts in all_wordings().values() for text in texts}
    # The first example of the issue is how a writer may well ask it, too.
    shared = {text for _, text in ASKED if text.strip().lower() in known}
    assert len(shared) <= 2
    assert not known & {text.strip().lower() for text in NONE}


def test_every_question_has_unseen_wordings_in_both_languages() -> None:
    assert set(UNSEEN["asked"]) == set(questions())
    for key, texts in UNSEEN["asked"].items():
        assert any(text.isascii() or not _is_chinese(text) for text in texts), key
        assert any(_is_chinese(text) for text in texts), key


def _is_chinese(text: str) -> bool:
    return any("\u4e00" <= c <= "\u9fff" for c in text)


def shares(wordings: list[tuple[str, str]]) -> tuple[float, float]:
    """How many have their question first, and among the first three."""
    ranked = [(key, found(text)) for key, text in wordings]
    first = sum(key in ids[:1] for key, ids in ranked) / len(ranked)
    among_three = sum(key in ids for key, ids in ranked) / len(ranked)
    print(f"{len(ranked)} wordings: top 1 {first:.1%}, top 3 {among_three:.1%}")
    return first, among_three


def test_unseen_wordings_find_their_question() -> None:
    first, among_three = shares(ASKED)
    assert first >= 0.94
    assert among_three >= 0.97


def test_wordings_that_the_tuning_never_saw_find_their_question() -> None:
    first, among_three = shares(LATER)
    assert first >= 0.88
    assert among_three >= 0.95


def test_the_first_23_questions_are_not_robbed_by_the_others() -> None:
    first, _ = shares([(key, text) for key, text in ASKED if int(key[1:]) <= 23])
    assert first >= 0.92


@pytest.mark.parametrize("texts", [NONE, LATER_NONE], ids=["none", "later"])
def test_what_no_text_answers_is_refused(texts: list[str]) -> None:
    refused = sum(not found(text) for text in texts) / len(texts)
    print(f"{len(texts)} questions without an answer: {refused:.1%} refused")
    assert refused >= 0.92


@pytest.mark.parametrize("key", questions())
def test_titles_and_known_wordings_find_their_own_question(key: str) -> None:
    texts = all_wordings()[key]
    lost = [text for text in texts if key not in found(text)]
    assert lost == []
    first = sum(found(text)[0] == key for text in texts)
    assert first >= 0.95 * len(texts)
