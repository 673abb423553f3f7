"""Laws and small examples of the estimators that compare responses of one prompt."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from telescope.algorithms import (
    dr_grpo,
    gae,
    gdpo,
    grpo,
    grpo_passk,
    last_actions,
    length_adaptive_lam,
    masked_whiten,
    maxrl,
    opo,
    optimal_token_baseline,
    rloo,
    spread,
)

leave_one_out = functools.partial(grpo, leave_one_out=True)
BY_GROUP = [grpo, leave_one_out, maxrl, dr_grpo, rloo, opo, grpo_passk]

NAN = float("nan")


def batch(seed: int, rows: int = 8, width: int = 6):
    make = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=make, dtype=torch.float64) > 0.3
    rewards = torch.randn(rows, width, generator=make, dtype=torch.float64).masked_fill(~mask, NAN)
    return rewards, mask, torch.randint(0, 3, (rows,), generator=make)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_group_advantages_average_to_zero_and_do_not_feel_a_shift_of_all_outcomes(seed):
    rewards, mask, group = batch(seed)
    mask[:, 0] = True
    rewards = rewards.nan_to_num()
    for estimator in (grpo, dr_grpo, rloo):
        plain, moved = estimator(rewards, mask, group).advantages, rewards.clone()
        moved[:, 0] += 3.0
        for number in group.unique():
            rows = group == number
            if rows.sum() > 1:  # a group of one is compared with 0
                assert float(plain[rows, 0].mean()) == pytest.approx(0, abs=1e-9)
                torch.testing.assert_close(
                    estimator(moved, mask, group).advantages[rows],
                    plain[rows],
                    rtol=1e-6,
                    atol=1e-9,
                )


@pytest.mark.parametrize("estimator", BY_GROUP)
def test_equal_outcomes_earn_exactly_nothing(estimator):
    for value in (0.7, 0.1, -3.3, 1e6):
        rewards = torch.tensor([[value, 0.0]] * 7)
        assert (estimator(rewards, torch.ones(7, 2), torch.zeros(7)).advantages == 0).all()


@pytest.mark.parametrize("estimator", BY_GROUP)
def test_the_record_explains_the_advantage(estimator):
    rewards, mask, group = batch(1)
    credit = estimator(rewards, mask, group)
    outcome = rewards.nan_to_num()[:, :].sum(-1, keepdim=True)
    again = ((outcome - credit.baselines) / credit.scale[:, None]).where(mask, 0.0)
    torch.testing.assert_close(again, credit.advantages)


def test_opo_with_equal_lengths_is_the_group_mean():
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.5], [0.0, 0.0]])
    torch.testing.assert_close(
        *(f(rewards, torch.ones(3, 2), torch.zeros(3)).advantages for f in (opo, dr_grpo))
    )


def test_only_the_best_of_k_is_credited_with_what_it_adds():
    rewards = torch.tensor([[1.0], [3.0], [2.5], [3.0]])
    tied = grpo_passk(rewards, torch.ones(4, 1), torch.zeros(4)).advantages
    assert (tied == 0).all()  # without it the other one would have been as good
    alone = grpo_passk(rewards[:3], torch.ones(3, 1), torch.zeros(3))
    assert (alone.advantages * alone.scale[:, None]).squeeze(1).tolist() == pytest.approx(
        [0, 0.5, 0]
    )


def test_a_token_baseline_with_equal_weights_is_the_mean_return_of_those_who_got_so_far():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    # π = ½, Σπ² = ½: every token adds ½ to W, so that at step t all have the same W
    credit = optimal_token_baseline(
        rewards, torch.full((3, 3), math.log(0.5)), torch.full((3, 3), 0.5), mask, torch.zeros(3)
    )
    assert credit.baselines[:, 0].tolist() == pytest.approx([0.5] * 3)  # (1 + 0 + ½)/3
    assert credit.baselines[:2, 1].tolist() == pytest.approx([0.5] * 2)  # (1 + 0)/2
    assert credit.baselines[0, 2] == 0  # nobody else got so far
    assert credit.advantages[0].tolist() == pytest.approx([0.5, 0.5, 1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_token_baseline_of_a_sure_policy_is_the_mean_return(dtype: torch.dtype):
    pi = torch.full(
        (3, 2), 0.9999, dtype=dtype
    )  # 1 − 2π + Σπ² = 1e-8: less than a float32 near 1 can hold
    rewards = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.5]], dtype=dtype)
    for noise in (0.0, 3e-7, -3e-7):
        sum_pi_squared = pi**2 + noise * torch.tensor([[1.0], [-1.0], [1.0]], dtype=dtype)
        credit = optimal_token_baseline(
            rewards, pi.log(), sum_pi_squared, torch.ones(3, 2), torch.zeros(3)
        )
        assert (credit.baselines == 0.5).all()


def test_a_token_baseline_lies_within_the_returns_whatever_the_rounding():
    make = torch.Generator().manual_seed(0)
    for _ in range(50):
        pi = 1 - torch.rand(4, 3, generator=make) * 1e-4
        sum_pi_squared = pi**2 + 3e-6 * torch.randn(4, 3, generator=make)
        rewards = torch.randn(4, 3, generator=make)
        credit = optimal_token_baseline(
            rewards, pi.log(), sum_pi_squared, torch.ones(4, 3), torch.zeros(4)
        )
        assert (credit.baselines <= credit.returns.amax(0)).all()
        assert (credit.baselines >= credit.returns.amin(0)).all()


def test_importance_weights_however_small_keep_their_part_in_a_token_baseline():
    half = torch.full((2, 1), 0.5)  # π = ½, Σπ² = ½: both squared norms are ½
    weights = torch.tensor([[1e-4], [2e-4]])
    credit = optimal_token_baseline(
        torch.tensor([[0.0], [1.0]]),
        half.log(),
        half,
        torch.ones(2, 1),
        torch.zeros(2),
        weights=weights,
    )
    assert credit.baselines.squeeze(1).tolist() == pytest.approx([0.8] * 2)  # 4·1/(1 + 4)


def test_shares_add_up_to_the_outcome():
    rewards, mask, _ = batch(2)
    mask[:, 0] = True
    rewards = rewards.nan_to_num().double()
    some = torch.rand_like(rewards) + 0.1
    for weights in (
        torch.ones_like(rewards),
        last_actions(mask),
        last_actions(mask, 3),
        some,
        0 * some,
        (some * 3e38).float(),
    ):
        advantages = spread(rewards, weights, mask).advantages
        torch.testing.assert_close(
            advantages.sum(1), rewards.where(mask, 0.0).sum(1), rtol=0, atol=1e-12
        )
        assert (advantages[~mask] == 0).all()


@pytest.mark.parametrize(
    ("k", "weights"),
    [
        (1, [[0, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),
        (
            2,
            [[0, 1, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
        ),  # over the tool's two tokens
        (9, [[1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),  # all there are
    ],
)
def test_the_last_k_actions_are_counted_without_the_tools_tokens(k: int, weights: list[list[int]]):
    mask = torch.tensor([[1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    assert last_actions(mask, k).tolist() == weights


def test_without_any_weight_every_token_has_the_same_share():
    rewards, mask = (
        torch.tensor([[0.0, 0.0, 3.0]] * 3),
        torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 0]]),
    )
    weights = torch.tensor(
        [[0.0, 0.0, 0.0], [0.0, 5.0, 0.0], [1.0, 1.0, 1.0]]
    )  # in the second only off the mask
    assert spread(rewards, weights, mask).advantages.tolist() == [
        [1.0, 1.0, 1.0],
        [1.5, 0.0, 1.5],
        [0.0, 0.0, 0.0],
    ]


def test_weights_whose_sum_is_too_large_for_float32_are_shares_all_the_same():
    weights = torch.tensor([[3e38, 1e38]])
    assert spread(torch.tensor([[0.0, 8.0]]), weights, torch.ones(1, 2)).advantages.tolist() == [
        [6.0, 2.0]
    ]


def test_an_empty_batch_and_empty_rows_have_no_credit():
    for estimator in BY_GROUP:
        assert estimator(torch.zeros(0, 4), torch.zeros(0, 4), torch.zeros(0)).advantages.shape == (
            0,
            4,
        )
        credit = estimator(torch.full((3, 2), NAN), torch.zeros(3, 2), torch.zeros(3))
        assert (credit.advantages == 0).all()


def test_gae_takes_a_lambda_for_each_row():
    rewards, mask, _ = batch(3, rows=5, width=150)
    values = torch.randn(5, 150, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    lam = length_adaptive_lam(mask, alpha=0.05)
    lam[0] = 0.0
    both = gae(rewards, values, mask, gamma=0.99, lam=lam)
    for row in range(5):
        one = gae(
            rewards[row : row + 1],
            values[row : row + 1],
            mask[row : row + 1],
            gamma=0.99,
            lam=float(lam[row]),
        )
        for mine, wanted in zip(both, one, strict=True):
            torch.testing.assert_close(mine[row], wanted[0])
    assert length_adaptive_lam(torch.ones(1, 100), alpha=0.05).tolist() == pytest.approx([0.8])
    assert length_adaptive_lam(torch.ones(1, 2), alpha=0.05).tolist() == [0.0]


def test_whitened_group_baselines_are_reinforce_with_baseline():
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    mask = torch.tensor([[1, 0], [1, 1], [1, 1]])
    whitened = masked_whiten(dr_grpo(rewards, mask, torch.zeros(3)).advantages, mask)
    assert float(whitened.sum()) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "grpo_passk", "gdpo"])
def test_a_millionth_is_added_to_the_standard_deviation(estimator):
    """Outcomes 0, 1 and 2 millionths have a standard deviation of one millionth: it is doubled."""
    outcomes = torch.tensor([[0.0], [1e-6], [2e-6]], dtype=torch.float64)
    one, group = torch.ones(3, 1), torch.zeros(3)
    if estimator == "gdpo":
        credit = gdpo(outcomes, torch.tensor([1.0], dtype=torch.float64), one, group)
    else:
        credit = {"grpo": grpo, "grpo_passk": grpo_passk}[estimator](outcomes, one, group)
    expected = [0.0, 0.0, 0.5] if estimator == "grpo_passk" else [-0.5, 0.0, 0.5]
    assert credit.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


def of_outcomes(estimator, outcomes: list[float]) -> list[float]:
    """The advantages of one group of one-token responses."""
    rewards = torch.tensor(outcomes, dtype=torch.float64)[:, None]
    mask = torch.ones_like(rewards)
    return estimator(rewards, mask, torch.zeros(len(outcomes))).advantages[:, 0].tolist()


def test_maxrl_measures_in_units_of_the_success_rate():
    # one of four is right: the mean is 1/4, so 1 − 1/4 is three means and 0 − 1/4 is minus one
    assert of_outcomes(maxrl, [1, 0, 0, 0]) == pytest.approx([3, -1, -1, -1], abs=1e-4)
    assert of_outcomes(maxrl, [1, 1, 0, 0]) == pytest.approx([1, 1, -1, -1], abs=1e-4)


def test_maxrl_learns_nothing_without_a_success():
    assert of_outcomes(maxrl, [0, 0, 0]) == [0, 0, 0]
    assert of_outcomes(maxrl, [-1, 0, -2]) == [0, 0, 0]


def test_maxrl_is_grpo_where_the_standard_deviation_is_the_mean():
    # outcomes 0 and 2: μ = 1; with n − 1 the variance of 0, 2 and 1 is 1 too
    assert of_outcomes(maxrl, [0, 2, 1]) == pytest.approx(of_outcomes(grpo, [0, 2, 1]))


def test_leaving_one_out_takes_mean_and_deviation_of_the_others():
    # others of 5: 0, 2, so μ = 1 and σ = √2; others of 0: 2, 5; others of 2: 0, 5
    found = of_outcomes(leave_one_out, [0, 2, 5])
    of_5 = 4 / math.sqrt(2)
    of_0 = -3.5 / math.sqrt(4.5)
    of_2 = -0.5 / math.sqrt(12.5)
    assert found == pytest.approx([of_0, of_2, of_5], abs=1e-5)


def test_a_difference_from_equal_others_is_not_blown_up():
    # the others of 1 are all 0: σ is 0, and 1 − 0 is not divided by it
    assert of_outcomes(leave_one_out, [1, 0, 0, 0])[0] == 1
    assert of_outcomes(leave_one_out, [3, 1]) == [2, -2]


def test_leaving_one_out_has_the_baseline_of_rloo():
    rewards, mask, group = batch(3)
    mask[:, 0] = True
    rewards = rewards.nan_to_num()
    ours = leave_one_out(rewards, mask, group).baselines
    torch.testing.assert_close(ours, rloo(rewards, mask, group).baselines)
