from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from telescope.algorithms import Moments, majority, overlong_penalty, pass_at_k

NUMBERS = st.lists(st.floats(-100, 100), max_size=8)


def test_moments_of_two_batches_by_hand() -> None:
    one = Moments().add([1.0, 3.0])
    assert (one.count, one.mean, one.std) == (2, 2.0, 1.0)
    two = one.add([5.0, 7.0])
    assert (two.count, two.mean, two.squares) == (4, 4.0, 9 + 1 + 1 + 9)


@given(NUMBERS, NUMBERS)
def test_moments_do_not_depend_on_how_scores_came(a: list[float], b: list[float]) -> None:
    apart, at_once = Moments().add(a).add(b), Moments().add(a + b)
    assert apart.count == at_once.count
    assert apart.mean == pytest.approx(at_once.mean, abs=1e-9)
    assert apart.squares == pytest.approx(at_once.squares, abs=1e-6)


@pytest.mark.parametrize("scores", [[], [3.0], [0.7] * 8, [0.1 + 0.2, 0.3]])
def test_scores_that_do_not_differ_are_not_blown_up(scores: list[float]) -> None:
    assert Moments().add(scores).std == 1.0


def test_the_overlong_penalty_ramps_over_the_last_tokens() -> None:
    penalty = overlong_penalty(torch.tensor([0, 6, 7, 8, 10, 12]), limit=10, tokens=4, penalty=2.0)
    assert penalty.tolist() == [0, 0, -0.5, -1.0, -2.0, -2.0]


def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_one() -> None:
    right = [True, False, False, True, False]
    for k in range(1, 6):
        draws = [any(draw) for draw in itertools.combinations(right, k)]
        assert pass_at_k(2, 5, k) == pytest.approx(sum(draws) / len(draws))
    assert math.isclose(pass_at_k(2, 5, 1), 0.4)


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (["2", "3", "3"], 1),
        (["2", "3", "3", "2"], 0),
        (["3", "2"], 0),
        ([None, "2", None], 1),
        ([None, None], None),
        ([], None),
    ],
)
def test_the_majority_is_the_most_frequent_answer_and_of_equals_the_earliest(
    answers: list[str | None], place: int | None
) -> None:
    assert majority(answers) == place
