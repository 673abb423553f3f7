"""Every sentence of every answer, on a grid of samples: what it claims is so.

Three things must agree: the words of a sentence (both languages), the record of what it says
(tests/explain/says.py), and what its claim computes from the sample.
"""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from telescope.explain.claims import evaluate
from telescope.explain.facts import facts
from telescope.explain.questions import answer, filled_columns, missing_for, questions
from telescope.explain.sample import Sample
from tests.explain.grid import cells
from tests.explain.says import now, recorded, said, sentences
from tests.explain.vocabulary import VOCABULARY

KEYS = pytest.mark.parametrize("key", list(questions()))
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ORDER_WORDS = {
    "larger", "smaller", "positive", "negative", "between", "clipped", "likely", "unlikely",
    "before", "after", "not", "all", "only", "sum", "differ", "minus", "times",
}  # fmt: skip


def test_every_text_says_what_is_recorded() -> None:
    """It fails after any change of meaning: `python -m tests.explain.says`, then read the diff."""
    assert now() == recorded()


@KEYS
def test_a_sentence_names_known_facts(key: str) -> None:
    for sentence in sentences(questions()[key]):
        named = {name for name in sentence.names if not name.startswith("sim_")}
        assert not named - VOCABULARY.keys(), sentence.en


@KEYS
def test_a_claim_about_order_is_said_in_words(key: str) -> None:
    for sentence in sentences(questions()[key]):
        if sentence.claim is None:
            continue
        nodes = ast.walk(ast.parse(sentence.claim))
        compares = [node for node in nodes if isinstance(node, ast.Compare)]
        if any(isinstance(op, ORDER) for node in compares for op in node.ops):
            assert set(said(sentence.zh, "zh").split()) & ORDER_WORDS, sentence.zh
            assert set(said(sentence.en, "en").split()) & ORDER_WORDS, sentence.en


@pytest.mark.slow
def test_every_claim_holds_in_every_cell(record_property) -> None:
    times: Counter[str] = Counter()
    checked = 0
    count = 0
    wrong: list[str] = []
    for cell in cells():
        count += 1
        known = facts(cell.sample, "en", cell.token)
        columns = filled_columns(cell.sample)
        for question in questions().values():
            if missing_for(question, cell.sample, columns):
                continue
            for at, sentence in enumerate(question.sentences):
                if sentence.simulated or not sentence.holds(known):
                    continue
                times[f"{question.id}-{at}"] += 1
                if sentence.claim is None:
                    continue
                checked += 1
                if not evaluate(sentence.claim, known):
                    wrong.append(f"{question.id}: {sentence.claim}  in  {cell.name}: {sentence.en}")
    print(f"\n{count} cells, {sum(times.values())} sentences said, {checked} claims checked")
    assert not wrong, f"{len(wrong)} false: " + "\n".join(wrong[:10])
    unsaid = [
        f"{question.id}: {sentence.when}: {sentence.en}"
        for question in questions().values()
        for at, sentence in enumerate(question.sentences)
        if not sentence.simulated and not times[f"{question.id}-{at}"]
    ]
    assert not unsaid, "never said: " + "\n".join(unsaid[:10])


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("level", ["expert", "kid"])
def test_every_question_has_an_answer_in_a_cell_of_every_kind(lang, level) -> None:
    symbol = re.compile(r"[γλδπρμσβεÂθΣ]|V_|\[|\d\.?e[+−-]?\d|critic|TD|GAE|KL|\d\.\d\d")
    for number, cell in enumerate(cells()):
        if number % 293:
            continue
        for key in questions():
            text = answer(key, cell.sample, lang, level, None).text()
            assert text, (key, cell.name)
            assert not re.search(r"\{|\}|nan|None|True|False", text), (key, text)
            if level == "kid":
                body = re.sub(r"[（(][^）)]*(没有|has no)[^）)]*[）)]", "", text)
                assert not symbol.search(body), (key, body)


def test_a_response_without_a_valid_token_gets_the_example() -> None:
    empty = Sample(token_ids=[7], token_bytes=[b"x"], mask=[0], columns={})
    for key in questions():
        assert answer(key, empty, "en").text().startswith("(This sample has no response_mask = 1")
