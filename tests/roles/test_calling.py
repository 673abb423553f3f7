"""How reward functions are called: async, in parallel, with a time limit, and what they may say."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from telescope.errors import TelescopeError
from telescope.roles.calling import Caller
from telescope.roles.reward import Reward
from telescope.trainer import Trainer
from tests.fakes import hand_batch
from tests.refusals import Job, refusal

BATCH = hand_batch([[1, 1], [1, 0]])


def test_async_functions_wait_for_one_another() -> None:
    """Each waits for the other, so one after the other they would never return."""
    started = {"a": threading.Event(), "b": threading.Event()}

    def waits(own: str, other: str):
        async def score(completions):
            started[own].set()
            while not started[other].is_set():
                await asyncio.sleep(0.001)
            return [1.0, 2.0]

        return score

    reward = Reward({"a": waits("a", "b"), "b": waits("b", "a")}, caller=Caller(seconds=30))
    assert [own.total for own in reward.score(BATCH).scores] == [2.0, 4.0]


def test_parallel_functions_run_at_the_same_time() -> None:
    meet = threading.Barrier(2, timeout=30)

    def first(completions):
        meet.wait()
        return [1.0, 1.0]

    def second(completions):
        meet.wait()
        return [0.5, 0.5]

    reward = Reward({"first": first, "second": second}, caller=Caller(parallel=True))
    assert [own.total for own in reward.score(BATCH).scores] == [1.5, 1.5]


def test_plain_functions_run_in_this_thread_unless_asked_otherwise() -> None:
    threads = []

    def where(completions):
        threads.append(threading.current_thread())
        return [0.0, 0.0]

    Reward({"where": where}).score(BATCH)
    Reward({"where": where}, caller=Caller(seconds=30)).score(BATCH)
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


def test_an_async_function_runs_where_an_event_loop_is_running() -> None:
    async def score(completions):
        return [1.0, 1.0]

    async def notebook():
        return Reward({"score": score}).score(BATCH)

    with ThreadPoolExecutor(1) as thread:  # a browser test may have left a loop in this one
        found = thread.submit(asyncio.run, notebook()).result()
    assert [own.total for own in found.scores] == [1.0, 1.0]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_that_hangs_ends_the_run_with_its_name(job: Job, is_async: bool) -> None:
    def hangs(completions):
        threading.Event().wait()

    async def hangs_too(completions):
        await asyncio.sleep(1e6)

    message = refusal(job(("reward.function_timeout", "0.05")), hangs_too if is_async else hangs)
    assert "has not returned after 0.05 s (reward.function_timeout)" in message
    assert "'hangs" in message


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3)])
def test_what_an_async_function_raises_is_told_with_its_line(error: BaseException) -> None:
    async def score(completions):
        await asyncio.sleep(0)
        raise error

    line = score.__code__.co_firstlineno + 2
    with pytest.raises(TelescopeError, match=f"'score' raised {type(error).__name__}") as caught:
        Reward({"score": score}).score(BATCH)
    assert f"(test_calling.py, line {line})" in str(caught.value)


def test_none_is_no_score_and_leaves_the_other_weights_as_they_are() -> None:
    reward = Reward(
        {"maths": lambda completions: [1.0, None], "style": lambda completions: [0.5, 0.5]},
        {"maths": 2.0, "style": 3.0},
    )
    batch = reward.score(BATCH)
    one, other = batch.scores
    assert (one.total, one.parts) == (3.5, {"maths": 1.0, "style": 0.5})
    assert (other.total, other.parts, other.weights) == (1.5, {"style": 0.5}, {"style": 3.0})
    assert batch["token_level_scores"].tolist() == [[0, 3.5], [1.5, 0]]


def test_a_response_to_which_no_function_applies_is_refused() -> None:
    reward = Reward({"a": lambda completions: [1.0, None], "b": lambda completions: [1.0, None]})
    with pytest.raises(TelescopeError, match=r"no reward function applies to response 1 \(prompt"):
        reward.score(BATCH)


def test_an_estimator_that_compares_parts_needs_them_all(job: Job) -> None:
    config = job(("credit.estimator", "gdpo"), ("rollout.n", "2"), ("credit.kl_coef", "0"))
    rewards = {
        "some": lambda prompts: [None] + [1.0] * (len(prompts) - 1),
        "all": lambda prompts: [0.0] * len(prompts),
    }
    message = refusal(config, rewards)
    assert "compares the parts of the score, and some returned None for response 0" in message


def test_the_mean_of_a_part_is_over_the_rows_it_applies_to(job: Job) -> None:
    rewards = {
        "maths": lambda prompts: [4.0] + [None] * (len(prompts) - 1),
        "style": lambda prompts: [0.0] * len(prompts),
    }
    metrics = Trainer(job(), reward=rewards).fit()
    assert (metrics["reward/maths"], metrics["reward/style"]) == (4.0, 0.0)
    assert metrics["reward/score_mean"] == 1.0  # of four responses


def test_extra_metrics_are_logged_under_the_part_that_returned_them(job: Job) -> None:
    def judged(completions):
        count = len(completions)
        return [1.0] * count, {"cost": 0.25, "agreed": [True] * (count - 1) + [None]}

    metrics = Trainer(job(), reward=judged).fit()
    assert metrics["reward/judged/cost"] == 0.25
    assert metrics["reward/judged/agreed"] == 1.0


def test_a_metric_that_is_no_number_is_refused() -> None:
    with pytest.raises(TelescopeError, match="returned the metric 'cost' = cheap for 2 responses"):
        Reward({"f": lambda completions: ([0.0, 0.0], {"cost": "cheap"})}).score(BATCH)


def test_step_and_evaluation_reach_a_function_that_names_them(make_config) -> None:
    seen = []

    def score(prompts, step, evaluation):
        seen.append((step, evaluation))
        return [0.0] * len(prompts)

    Trainer(make_config(("eval.samples", "1"), ("eval.prompts", "1")), reward=score).fit()
    assert list(dict.fromkeys(seen)) == [(0, True), (1, False), (2, False), (2, True)]


def test_a_function_that_takes_all_columns_does_not_get_step_and_evaluation() -> None:
    def score(completions, **columns):
        assert not {"step", "evaluation"} & set(columns)
        return [0.0, 0.0]

    Reward({"score": score}).score(BATCH)


def test_a_column_of_the_data_called_step_stays_the_datas() -> None:
    batch = BATCH.with_info(data=[{"step": 7.0}, {"step": 8.0}])
    scored = Reward({"score": lambda step: step}).score(batch)
    assert [own.total for own in scored.scores] == [7.0, 8.0]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("completion_ids", "response_ids"),
        ("solution_str", "completions"),
        ("completion", "completions"),
        ("trainer_state", "step"),
    ],
)
def test_another_trainers_name_of_an_argument_is_answered_with_ours(name: str, ours: str) -> None:
    names: dict[str, object] = {}
    exec(f"def score({name}): return [0.0, 0.0]", names)
    with pytest.raises(TelescopeError, match=f"asks for `{name}`.*did you mean `{ours}`"):
        Reward({"score": names["score"]}).score(BATCH)


@pytest.mark.parametrize("returned", [{"a": 1, "b": 2}, "ab"])
def test_a_table_or_a_text_is_no_list_of_scores(returned: object) -> None:
    with pytest.raises(TelescopeError) as error:
        Reward({"score": lambda completions: returned}).score(BATCH)
    assert f"returned {returned!r} for 2 responses" in str(error.value)


def test_a_function_that_names_states_gets_none_where_nothing_is_reported() -> None:
    """An environment may report nothing for all responses of one batch."""
    seen: list[object] = []

    def reward(states: list[object]) -> list[float]:
        seen.extend(states)
        return [0.0 for _ in states]

    Reward({"reward": reward}).score(hand_batch([[1], [1]]))
    assert seen == [None, None]
