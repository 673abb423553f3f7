"""Intervals, ranks and lines by hand."""

from __future__ import annotations

import math

import pytest

from telescope.audit.statistics import Estimate, estimate, exactly, gain, line, spearman


def test_equal_outcomes_do_not_give_an_interval_of_width_zero() -> None:
    """64 ones: (64 + 1.92)/(64 + 3.84) = 0.9717, and 1.96·√(0.9717·0.0283/67.84) = 0.0395."""
    found = estimate([1.0] * 64, 0.0, 1.0)
    assert found.mean == 1
    assert found.error == 0
    assert found.low == pytest.approx(0.9717 - 0.0395, abs=2e-4)
    assert found.high == 1


def test_the_interval_of_coins_is_agresti_and_coulls() -> None:
    """20 of 64: p̃ = (20 + 1.92)/67.84 = 0.3231, half = 1.96·√(p̃(1 − p̃)/67.84) = 0.1113."""
    found = estimate([1.0] * 20 + [0.0] * 44, 0.0, 1.0)
    assert found.mean == 20 / 64
    assert (found.low, found.high) == pytest.approx((0.2118, 0.4344), abs=2e-4)
    assert found.error == pytest.approx(math.sqrt(20 / 64 * 44 / 64 / 63))


def test_another_unit_gives_the_same_interval_in_that_unit() -> None:
    coins = [1.0] * 9 + [0.0] * 7
    plain = estimate(coins, 0.0, 1.0)
    moved = estimate([10 * x - 3 for x in coins], -3.0, 7.0)
    assert (moved.low, moved.high) == pytest.approx((10 * plain.low - 3, 10 * plain.high - 3))


def test_the_gain_of_a_token_adds_distances_in_squares() -> None:
    before = Estimate(0.5, 0.2, 0.9, 0.1)
    after = Estimate(0.8, 0.5, 1.0, 0.1)
    found = gain(0.1, 1.0, after, before)
    assert found.mean == pytest.approx(0.4)
    assert found.low == pytest.approx(0.4 - 0.5)  # √(0.3² + 0.4²)
    assert found.high == pytest.approx(0.4 + math.hypot(0.2, 0.3))
    last = gain(1.0, 0.9, exactly(0.0), before)
    assert (last.low, last.high) == pytest.approx((1.0 - 0.9, 1.0 - 0.2))


def test_the_line_through_points_on_a_line_is_that_line() -> None:
    assert line([0, 1, 3], [1, 3, 7]) == pytest.approx((1, 2))
    assert line([0.5, 0.5, 0.5], [1, 2, 3]) is None


def test_spearman_sees_only_the_order_and_shares_equal_ranks() -> None:
    assert spearman([1, 2, 3], [1, 10, 100]) == 1
    assert spearman([1, 2, 3], [3, 2, 1]) == -1
    # ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: 4.5/√(4.5·5)
    assert spearman([1, 2, 2, 5], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman([1, 1], [1, 2]) is None
