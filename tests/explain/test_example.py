"""The built-in example shows what an example has to show, by its numbers."""

from __future__ import annotations

import itertools

from telescope.explain.arithmetic import fill, moments
from telescope.explain.example import BATCH, RIGHT, WRONG
from telescope.explain.questions import EXAMPLE
from telescope.explain.sample import Sample
from telescope.explain.whitening import advantages

RIGHT_DIGIT = WRONG_DIGIT = 4


def test_it_is_a_right_and_a_wrong_answer_to_one_prompt() -> None:
    assert [sample.score for sample in BATCH] == [1.0, 0.0]
    assert {sample.prompt for sample in BATCH} == {"请问1+1=2？"}
    assert [sample.response for sample in BATCH] == ["是的，等于2！", "是的，等于3！"]
    assert EXAMPLE is RIGHT


def steps_of(sample: Sample) -> list[float]:
    return [after - before for before, after in itertools.pairwise(sample.columns["values"])]


def test_v_rises_and_falls_in_both() -> None:
    for sample in BATCH:
        assert max(steps_of(sample)) > 0 > min(steps_of(sample))


def test_v_falls_most_where_the_error_is_written() -> None:
    steps = steps_of(WRONG)
    assert min(steps) == steps[WRONG_DIGIT] < -0.5
    assert steps_of(RIGHT)[RIGHT_DIGIT] > 0


def test_what_has_not_yet_differed_has_the_same_numbers() -> None:
    """A policy and a critic see only the text before the token."""
    for name in ("old_log_probs", "ref_log_prob", "values"):
        assert RIGHT.columns[name][:4] == WRONG.columns[name][:4]
    assert RIGHT.columns["values"][4] == WRONG.columns["values"][4]  # before the digit
    for right, wrong in zip(RIGHT.actor_updates, WRONG.actor_updates, strict=True):
        assert right.log_probs[:4] == wrong.log_probs[:4]


def test_both_are_whitened_with_the_moments_of_both() -> None:
    every = advantages(RIGHT) + advantages(WRONG)
    for sample in BATCH:
        assert (sample.whiten_mean, sample.whiten_std) == moments(every)


def test_one_digit_is_clipped_above_and_the_other_below() -> None:
    right = fill(RIGHT)
    wrong = fill(WRONG)
    assert right.actor_updates[0].clipped == [t == RIGHT_DIGIT for t in range(6)]
    assert wrong.actor_updates[0].clipped == [t == WRONG_DIGIT for t in range(6)]
    assert right.actor_updates[0].ratio[RIGHT_DIGIT] > 1.2
    assert wrong.actor_updates[0].ratio[WRONG_DIGIT] < 0.8


def test_whitening_changes_a_sign() -> None:
    wrong = fill(WRONG)
    assert wrong.columns["advantages"][-1] < 0 < wrong.columns["whitened"][-1]
