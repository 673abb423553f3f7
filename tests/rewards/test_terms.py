"""The simple terms of a reward, on texts that can be checked at a glance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.build import build_reward
from telescope.errors import TelescopeError
from telescope.rewards.builtin import builtin_reward
from telescope.rewards.maths import MathVerify
from telescope.rewards.terms import exact, format_, json_schema, length, regex, repetition
from telescope.trainer import Trainer
from tests.fakes import hand_batch
from tests.refusals import Job, refusal


def test_exact_compares_the_whole_turn_without_spaces_at_its_ends() -> None:
    assert exact()([" 4 ", "4.", "four"], answer=["4", 4, ["4", "four"]]) == [1, 0, 1]


def test_exact_takes_the_last_match_of_a_pattern() -> None:
    score = exact(pattern=r"#### (\S+)", case=False, column="right")
    assert score(["#### 3 #### Ab", "Ab"], right=["aB", "ab"]) == [1, 0]


@pytest.mark.parametrize("empty", [None, "", " ", [], float("nan")])
def test_a_row_whose_answer_or_tests_are_empty_has_no_score(empty: Any) -> None:
    assert exact()(["4"], answer=[empty]) == [None]
    assert MathVerify()(["4"], answer=[empty]) == [None]
    programs = builtin_reward("python", {})
    assert programs is not None
    assert programs[1](["print(4)"], tests=[empty]) == ([None], {"tests_passed": [None]})


def test_exact_takes_a_whole_number_for_its_digits() -> None:
    """pandas makes 5.0 of a 5 in a column with gaps."""
    assert exact()(["5", "5", "0.5"], answer=[5.0, 5, 0.5]) == [1, 1, 1]


def test_exact_names_the_column_that_is_missing() -> None:
    with pytest.raises(TelescopeError, match="compares with the column 'answer'; the data has"):
        exact()(["4"], prompts=["2+2"])


def test_regex_searches_or_matches_the_whole_turn() -> None:
    assert regex(pattern=r"\d+")(["a 12", "b"]) == [1, 0]
    assert regex(pattern=r"\d+", whole=True)(["a 12", "12"]) == [0, 1]


GOOD = "<think>hm</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (GOOD, 1),
        ("Sure! " + GOOD, 0),
        (GOOD + GOOD, 0),
        ("<answer>4</answer><think>hm</think>", 0),
        ("<think>hm</think><answer>4", 0),
        ("<think><think>hm</think><answer>4</answer>", 0),
    ],
)
def test_format_wants_each_tag_once_in_order_and_nothing_outside(text: str, score: int) -> None:
    assert format_()([text]) == [score]


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def test_json_schema_checks_the_turn_or_its_last_block(tmp_path: Path) -> None:
    texts = ['{"n": 1}', 'So:\n```json\n{"n": 2}\n```', '{"n": "1"}', "n = 1", "[" * 100_000]
    assert json_schema(schema=SCHEMA)(texts) == [1, 1, 0, 0, 0]
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    assert json_schema(schema=str(path))(texts[:1]) == [1]


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(TelescopeError, match="this is not a JSON schema"):
        json_schema(schema={"type": "no such type"})


@pytest.mark.parametrize(
    ("tokens", "score"),
    [(0, -1.0), (1, -0.5), (2, 0.0), (4, 0.0), (6, -0.5), (8, -1.0), (99, -1.0)],
)
def test_length_falls_to_minus_one_below_and_above(tokens: int, score: float) -> None:
    assert length(most=4, least=2)([[7] * tokens]) == [score]


def test_repetition_is_minus_the_share_of_repeated_ngrams() -> None:
    score = repetition(n=2)
    assert score([[1, 2, 3, 4], [1, 2, 1, 2, 1], [1]]) == [0.0, -0.5, 0.0]


def test_math_verify_compares_as_mathematics() -> None:
    reward = MathVerify()
    turns = [r"so it is $\frac{1}{2}$", "the answer is 0.5", "the answer is 2", "7", r"\boxed{7}"]
    right: list[Any] = ["1/2", r"\frac{1}{2}", "1/2", None, 7]
    assert reward(turns, right) == [1.0, 1.0, 0.0, None, 1.0]
    assert reward.trouble == []
    reward._stop()


def test_a_math_verify_that_dies_scores_zero_and_is_told() -> None:
    reward = MathVerify()
    reward._start().kill()
    reward._process.wait()
    assert reward(["1"], ["1"]) == [0.0]
    assert reward.trouble == ["math_verify gave no answer in time; the response scores 0"]


def test_a_recipe_names_terms_their_options_and_their_weights(job: Job) -> None:
    config = job(
        ("reward.functions", "digit=regex,repetition,length"),
        ("reward.options", "{digit = {pattern = '2'}, length = {most = 100}}"),
        ("reward.weights", "{digit = 2.0}"),
    )
    reward = build_reward(config, None, torch.device("cpu"))
    batch = hand_batch([[1, 1]])
    assert reward.score(batch).scores[0].parts == {"digit": 0.0, "repetition": 0.0, "length": 0.0}
    assert {"reward/digit", "reward/repetition"} <= set(Trainer(config).fit())


@pytest.mark.parametrize(
    ("functions", "options", "message"),
    [
        ("regex", "{}", "reward.options.regex: missing 1 required keyword-only argument: 'pattern'; regex has pattern, whole"),
        ("length", "{length = {limit = 3}}", "got an unexpected keyword argument 'limit'; length has most, least"),
        ("length", "{length = {most = 3}, regex = {pattern = 'x'}}", "reward.options names 'regex'; reward.functions has length"),
        ("regex", "{regex = {pattern = '('}}", "'(' is not a regular expression"),
        ("one=regex", "{one = {pattern = '('}}", "one=regex: '(' is not a regular expression"),
        ("length", "{length = {most = 3, least = 4}}", "length: least = 4, most = 3"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_the_right_ones(
    job: Job, functions: str, options: str, message: str
) -> None:
    config = job(("reward.functions", functions), ("reward.options", options))
    assert message in refusal(config, None)


def test_an_option_that_is_a_setting_is_answered_with_the_setting() -> None:
    with pytest.raises(TelescopeError, match=r"is a setting: set reward\.retries"):
        builtin_reward("judge", {"judge": {"retries": 1}}, retries=3, timeout=1.0)
