"""What a user can get wrong about rewards: the message names the function and what it returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.errors import TelescopeError
from telescope.trainer import Trainer
from tests.refusals import PROMPTS, Job, names_of_checkpoints, refusal, write_jsonl


def test_two_servers_of_one_name_are_refused_with_how_to_tell_them_apart(job: Job):
    message = refusal(job(("reward.functions", "http://one/score,http://two/score")), reward=None)
    assert (
        "two reward functions are called 'score': rename one (of an address: name=https://…)"
        in message
    )


def raises(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    raise KeyError("no such answer")


def test_a_reward_function_that_raises_is_named_with_its_line(job: Job):
    line = raises.__code__.co_firstlineno + 1
    assert (
        refusal(job(), raises)
        == f"reward function 'raises' raised KeyError: 'no such answer' (test_bad_rewards.py, line {line})"
    )


def test_a_reward_function_that_raises_an_error_without_a_text_is_named(job: Job):
    class Odd(BaseException):
        def __str__(self) -> Any:
            return 1

    def odd(completions: list[str]) -> list[float]:
        raise Odd

    assert "raised Odd: (no text)" in refusal(job(), odd)


def test_a_reward_function_that_raises_several_lines_is_told_in_one(job: Job):
    def verbose(prompts: Sequence[str]) -> list[float]:
        raise ValueError("first\nsecond")

    assert "first" in refusal(job(), verbose)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused(job: Job, number: float):
    def off(prompts: Sequence[str]) -> list[float]:
        return [0.0, 0.0, number, 0.0]

    message = refusal(job(), off)
    assert f"reward function 'off' returned {number!r} for response 2" in message
    assert "return a finite number" in message


@pytest.mark.parametrize("number", [1e300, 10**400], ids=["float", "int"])
def test_a_score_too_large_for_float32_is_refused(job: Job, number: float):
    def huge(prompts: Sequence[str]) -> list[float]:
        return [number] * len(prompts)

    assert "reward function 'huge'" in refusal(job(), huge)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_number_of_scores_is_refused(job: Job, count: int):
    assert refusal(job(), {"few": lambda prompts: [0.0] * count}) == (
        f"reward function 'few' returned {count} scores for 4 responses: return one score for each"
    )


@pytest.mark.parametrize("returned", [None, 1.0, 3])
def test_a_reward_that_returns_no_list_is_told_what_it_returned(job: Job, returned: Any):
    assert refusal(job(), {"one": lambda prompts: returned}) == (
        f"reward function 'one' returned {returned!r} for 4 responses: return one score for each"
    )


@pytest.mark.parametrize("given", [3, {"a": "rw.py:ok"}])
def test_a_reward_that_is_no_function_is_refused_before_training(job: Job, given: Any):
    with pytest.raises(TelescopeError, match=r"is no function: give f\(prompts, completions"):
        Trainer(job(), reward=given)


def test_a_reward_by_the_name_of_a_missing_file_is_refused_before_training(job: Job):
    with pytest.raises(TelescopeError, match=r"there is no file rw\.py"):
        Trainer(job(), reward="rw.py:ok")


def test_a_wrong_number_of_token_scores_is_refused(job: Job):
    def tokens(response_ids: Sequence[list[int]]) -> list[list[float]]:
        return [[0.0] * (len(ids) + (i == 1)) for i, ids in enumerate(response_ids)]

    message = refusal(job(), tokens)
    assert "reward function 'tokens' returned" in message
    assert "token scores for response 1, which has" in message


def test_token_scores_that_are_no_numbers_are_refused(job: Job):
    message = refusal(
        job(), {"tokens": lambda response_ids: [[math.nan] * len(ids) for ids in response_ids]}
    )
    assert "return a finite number" in message


@pytest.mark.parametrize(
    "returned",
    [
        None,
        1.0,
        torch.tensor(1.0),
        "good",
        "1111",
        ["good"] * 4,
        ["1"] * 4,
        [{}] * 4,
        dict.fromkeys("abcd", 1.0),
    ],
    ids=[
        "none",
        "number",
        "0-d-tensor",
        "text",
        "digits",
        "texts",
        "digit-texts",
        "dicts",
        "dict",
    ],
)
def test_what_is_not_a_list_of_scores_is_refused_by_name(job: Job, returned: Any):
    message = refusal(
        job(("rollout.max_response_tokens", "1")), {"odd": lambda prompts: returned}
    )  # "1" is no score per token
    assert "reward function 'odd'" in message


@pytest.mark.parametrize(
    "wrap",
    [torch.tensor, lambda scores: [torch.tensor(score) for score in scores]],
    ids=["tensor", "tensors"],
)
def test_scores_may_be_tensors(job: Job, wrap: Callable[[list[float]], Any]):
    metrics = Trainer(job(), reward={"constant": lambda prompts: wrap([0.5] * len(prompts))}).fit()
    assert metrics["reward/score_mean"] == 0.5


def test_a_column_that_the_data_lacks_is_named(job: Job):
    def check(
        prompts: Sequence[str], completions: Sequence[str], answer: Sequence[int]
    ) -> list[float]:
        return [0.0] * len(prompts)

    message = refusal(job(), check)
    assert "reward function 'check' asks for `answer`" in message
    assert "the data has" in message


def test_the_columns_offered_instead_are_all_that_there_are(job: Job, tmp_path: Path):
    path = write_jsonl(tmp_path / "solved.jsonl", [{"prompt": "1+1", "solution": 2}])
    message = refusal(job(("data.files", str(path))), lambda answer: [0.0])
    assert "solution" in message


@pytest.mark.parametrize(
    "column", ["prompts", "completions", "prompt_ids", "response", "response_ids"]
)
def test_a_data_column_never_takes_the_place_of_what_the_model_wrote(
    job: Job, tmp_path: Path, column: str
):
    """Either the data is refused, or the function still sees the prompts and responses of this step."""
    path = write_jsonl(
        tmp_path / "columns.jsonl", [{"prompt": text, column: "from the data"} for text in PROMPTS]
    )

    def look(
        prompts: Sequence[str],
        completions: Sequence[str],
        prompt_ids: Sequence[list[int]],
        response_ids: Sequence[list[int]],
    ):
        seen.append((prompts, completions, prompt_ids, response_ids))
        return [0.0] * len(prompts)

    seen: list[tuple[Any, ...]] = []
    refused = ""
    try:
        Trainer(job(("data.files", str(path)), ("steps", "1")), reward=look).fit()
    except TelescopeError as error:
        refused = str(error)
    assert column in refused or all("from the data" not in given for given in seen[0])


def test_weights_that_name_no_part_are_refused(job: Job):
    message = refusal(job(("reward.weights.lenght", "2")))
    assert message == "reward.weights names 'lenght'; the parts are length"


def load_refusal(job: Job, spec: str) -> str:
    return refusal(job(("reward.functions", spec)), reward=None)


def test_a_missing_reward_file_is_named(job: Job, tmp_path: Path):
    assert f"there is no file {tmp_path / 'nosuch.py'}" in load_refusal(
        job, f"{tmp_path / 'nosuch.py'}:score"
    )


def test_a_missing_reward_module_is_named(job: Job):
    assert "'nosuch_module:score' cannot be loaded: ModuleNotFoundError" in load_refusal(
        job, "nosuch_module:score"
    )


def test_a_reward_without_a_function_name_is_refused(job: Job):
    assert "write it as module:function or path/to/file.py:function" in load_refusal(job, "score")


@pytest.mark.parametrize("source", ["", "score = 3"], ids=["absent", "not-a-function"])
def test_a_function_missing_in_a_reward_file_is_named(job: Job, tmp_path: Path, source: str):
    path = tmp_path / "rewards.py"
    path.write_text(source)
    assert f"{path} has no function 'score'" in load_refusal(job, f"{path}:score")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import nosuch_module", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("def score(:", "SyntaxError"),
    ],
)
def test_a_reward_file_that_cannot_be_imported_says_why(
    job: Job, tmp_path: Path, source: str, error: str
):
    path = tmp_path / "rewards.py"
    path.write_text(source)
    message = load_refusal(job, f"{path}:score")
    assert f"'{path}:score' cannot be loaded: {error}" in message


def test_a_reward_file_is_an_ordinary_module(job: Job, tmp_path: Path):
    """Dataclasses and pickle look their module up in sys.modules."""
    path = tmp_path / "rewards_with_a_dataclass.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Verdict:\n    score: float\n\n\n"
        "def score(prompts):\n    return [Verdict(1.0).score for _ in prompts]\n"
    )
    assert Trainer(job(("reward.functions", f"{path}:score"))).fit()["reward/score_mean"] == 1.0


def test_two_reward_functions_of_one_name_are_refused(job: Job, tmp_path: Path):
    path = tmp_path / "rewards.py"
    path.write_text("def length(prompts): return [0.0] * len(prompts)")
    assert "two reward functions are called 'length': rename one" in refusal(
        job(("reward.functions", f"{path}:length"))
    )


def test_a_reward_that_fails_late_leaves_the_checkpoints_before_it(job: Job):
    calls = []

    def tired(prompts: Sequence[str]) -> list[float]:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the judge is asleep")
        return [float(len(calls))] * len(prompts)

    config = job(("steps", "4"))
    assert "the judge is asleep" in refusal(config, tired)
    assert names_of_checkpoints(config) == ["step_000001", "step_000002"]
    trainer = Trainer(config, reward=tired, resume=True)
    trainer.fit()
    assert [row["step"] for row in trainer.history()] == [0, 1, 2, 3, 4]


def test_a_misspelt_reward_is_answered_with_the_one_that_is_there(job: Job, tmp_path: Path):
    path = tmp_path / "rewards.py"
    path.write_text("def digits(completions): return [0.0 for _ in completions]")
    assert "has no function 'digit'; did you mean 'digits'?" in load_refusal(job, f"{path}:digit")
    message = load_refusal(job, "exct")
    assert "name a built-in one: exact, regex, json_schema" in message
    assert message.endswith("did you mean 'exact'?")
