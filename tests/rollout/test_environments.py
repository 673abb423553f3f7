from __future__ import annotations

import json
from pathlib import Path

import bm25s
import pytest

from telescope.config import RolloutConfig
from telescope.data import toys
from telescope.errors import TelescopeError
from telescope.rollout.environments import Calculator, Search, calculate, exact_match


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37*48", "1776"),
        ("1/4", "0.25"),
        ("6/3", "2"),
        (" -(2+3)*4 ", "-20"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.3333333333"),
    ],
)
def test_the_calculator_computes(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "9**9",
        "__import__('os')",
        "1+",
        "",
        "a",
        "True",
        "1j",
        "1" * 201,
        "(" * 150 + "1" + ")" * 150,
    ],
)
def test_the_calculator_takes_nothing_but_short_sums(expression: str) -> None:
    with pytest.raises((ValueError, MemoryError, RecursionError)):
        calculate(expression)


def test_a_division_by_zero_is_the_tools_to_report() -> None:
    with pytest.raises(ZeroDivisionError):
        calculate("1/0")


def test_a_turn_without_a_call_is_the_last() -> None:
    calculator = Calculator(RolloutConfig(environment="calculator"))
    assert calculator.step(None, "let me see <calc>2*3</calc>") == "<result>6</result>"
    assert calculator.step(None, "<answer>6</answer>") is None


TEXTS = ["the river of kaban is bodel", "the king of kaban is alnor", "北京是中国的首都"]


def corpus(folder: Path, passages: int = 1) -> RolloutConfig:
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), "utf-8")
    return RolloutConfig(environment="search", corpus=str(path), passages=passages)


def test_search_finds_the_passage_with_the_querys_words(tmp_path: Path) -> None:
    search = Search(corpus(tmp_path))
    assert (
        search.step(None, "<search>River, Kaban?</search>")
        == f"<information>{TEXTS[0]}</information>"
    )
    assert search.find("中国首都") == [TEXTS[2]]
    assert search.find("zzz") == search.find("") == ["nothing found"]
    assert set(Search(corpus(tmp_path, 9)).find("kaban")) == set(TEXTS[:2])
    assert search.step(None, "<answer>bodel</answer>") is None


def test_search_reads_an_index_that_bm25s_saved(tmp_path: Path) -> None:
    index = bm25s.BM25()
    index.index([text.split() for text in TEXTS], show_progress=False)
    index.save(tmp_path / "index", corpus=[{"text": text} for text in TEXTS], show_progress=False)
    search = Search(RolloutConfig(environment="search", corpus=str(tmp_path / "index"), passages=1))
    assert search.find("king of kaban") == [TEXTS[1]]


def test_a_corpus_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="no data file"):
        Search(RolloutConfig(environment="search", corpus=str(tmp_path / "none.jsonl")))


def test_the_answer_counts_where_the_policy_gives_it_last() -> None:
    turns = [
        "<answer>The Bodel.</answer>",
        "bodel",
        "<answer>x</answer><answer>bodel</answer>",
        "<answer>bodel</answer><answer>x</answer>",
    ]
    assert exact_match(turns, last_turns=turns, answer=["bodel"] * 4) == [1, 0, 1, 0]
    assert exact_match(["q"], last_turns=["<answer>7</answer>"], answer=[["6", 7]]) == [1]


@pytest.mark.parametrize("task", ["calculator", "search"])
def test_the_toys_questions_are_held_out_and_their_words_are_known(task: str) -> None:
    train, held_out = (toys.rows(task, evaluation=evaluation) for evaluation in (False, True))
    assert train
    assert held_out
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}
    tokenizer = toys.make_tokenizer(task)
    texts = [row["prompt"] for row in train + held_out] + [
        f"<answer>{row['answer']}</answer>" for row in train
    ]
    texts += (
        ["<calc>37*48</calc><result>1776</result>"]
        if task == "calculator"
        else [f"<information>{p}</information>" for p in toys.PASSAGES]
    )
    assert tokenizer.unk_token_id not in {i for ids in tokenizer(texts).input_ids for i in ids}
    assert toys.row_of(task, train[0]["prompt"]) == train[0]
    with pytest.raises(TelescopeError, match="is not a question of the built-in"):
        toys.row_of(task, "why?")
