"""Laws of GAE, its TD errors and its returns, for any mask."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from telescope.algorithms import (
    gae,
    monte_carlo_returns,
    n_step_advantages,
    td_errors,
)
from tests.algorithms.law_rows import Rows, close, law, noise, rows, tensor


def plain_loop(r: Rows) -> tuple[Tensor, Tensor]:
    """GAE one token at a time, as the definition says."""
    advantages, returns = torch.zeros_like(r.rewards), torch.zeros_like(r.rewards)
    for b, actions in r.actions():
        next_value, next_advantage = float(r.bootstrap[b]), 0.0
        for t in reversed(actions):
            value = float(r.values[b, t])
            next_advantage = (
                float(r.rewards[b, t])
                + r.gamma * next_value
                - value
                + r.gamma * r.lam * next_advantage
            )
            advantages[b, t], returns[b, t], next_value = (
                next_advantage,
                next_advantage + value,
                value,
            )
    return advantages, returns


@law
@given(rows())
def test_gae_with_lambda_one_is_return_minus_value(r):
    advantages, returns = r.gae(lam=1.0)
    close(advantages, r.kept(r.observed() - r.values))
    close(returns, r.observed())


@law
@given(rows())
def test_gae_with_lambda_zero_is_the_td_error(r):
    close(r.gae(lam=0.0)[0], r.td_errors())


@law
@given(rows())
def test_discounted_td_errors_telescope_to_return_minus_value(r):
    deltas, total = r.td_errors(), torch.zeros_like(r.rewards)
    for b, actions in r.actions():
        for i, t in enumerate(actions):
            total[b, t] = sum(r.gamma**k * deltas[b, u] for k, u in enumerate(actions[i:]))
    close(total, r.kept(r.observed() - r.values))


@law
@given(rows())
def test_gae_is_the_finite_mixture_of_n_step_advantages(r):
    advantages, n_step = r.gae()[0], [r.n_step(n) for n in range(1, r.mask.shape[1] + 1)]
    for b, actions in r.actions():
        for i, t in enumerate(actions):
            left = len(actions) - i  # N: actions from here to the end
            shorter = sum(r.lam ** (n - 1) * n_step[n - 1][b, t] for n in range(1, left))
            close(
                advantages[b, t],
                (1 - r.lam) * shorter + r.lam ** (left - 1) * n_step[left - 1][b, t],
            )


@law
@given(rows(), st.integers(0, 3))
def test_one_step_is_the_td_error_and_steps_past_the_end_are_monte_carlo(r, more):
    close(r.n_step(1), r.td_errors())
    close(r.n_step(r.mask.shape[1] + more), r.kept(r.observed() - r.values))


@law
@given(rows())
def test_gae_is_the_plain_loop_for_any_mask(r):
    for ours, wanted in zip(r.gae(), plain_loop(r), strict=True):
        close(ours, wanted)


@pytest.mark.parametrize("holes", [False, True], ids=["padded", "holes"])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200, 4100])
def test_blocked_scan_is_the_plain_loop_at_any_length(length, holes):
    cut = torch.tensor([length, length // 2 + 1, length // 3])
    mask = (noise(3, length, seed=9) > -0.5) if holes else torch.arange(length) < cut[:, None]
    r = Rows(
        noise(3, length, seed=1), noise(3, length, seed=2), mask, noise(3, seed=3), 0.999, 0.97
    )
    for ours, wanted in zip(r.gae(), plain_loop(r), strict=True):
        close(ours, wanted, atol=1e-10)
    close(
        r.observed(),
        plain_loop(Rows(r.rewards, torch.zeros_like(r.values), mask, r.bootstrap, r.gamma, 1.0))[0],
        atol=1e-10,
    )


@law
@given(rows())
def test_a_bootstrap_is_a_terminal_reward_of_gamma_times_it(r):
    paid = r.rewards.clone()
    for b, actions in r.actions():
        if actions:
            paid[b, actions[-1]] += r.gamma * r.bootstrap[b]
    fake = Rows(paid, r.values, r.mask, torch.zeros_like(r.bootstrap), r.gamma, r.lam)
    for ours, wanted in (
        (r.gae()[0], fake.gae(bootstrap=None)[0]),
        (r.observed(), fake.observed()),
        (r.n_step(2), fake.n_step(2)),
    ):
        close(ours, wanted)


def test_td_errors_add_up_but_advantages_do_not():
    r = Rows(
        tensor([[0, 0, 1]]), tensor([[0.25, 0.5, 0.75]]), torch.ones(1, 3), tensor([0.0]), 1.0, 0.5
    )
    close(r.td_errors(), tensor([[0.25, 0.25, 0.25]]))  # they sum to G − V₀ = 0.75
    close(r.gae()[0], tensor([[0.4375, 0.375, 0.25]]))  # these sum to 1.0625


def test_integer_rewards_are_discounted_as_floats():
    close(
        monte_carlo_returns(torch.tensor([[0, 0, 4]]), torch.ones(1, 3), gamma=0.5).double(),
        tensor([[1, 2, 4]]),
    )


def test_a_large_reward_at_the_end_costs_a_short_sum_no_digits():
    rewards, values = torch.tensor([[0.0, 0.0, 1e4]]), torch.tensor([[0.3001, 0.5002, 0.7003]])
    ours = n_step_advantages(rewards, values, torch.ones(1, 3), n=1, gamma=1.0)
    assert ours.dtype is torch.float32
    assert ours[0, :2].tolist() == pytest.approx([0.2001, 0.2001], abs=1e-7)  # V₁ − V₀, V₂ − V₁


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("holes", [False, True], ids=["padded", "holes"])
def test_half_precision_is_summed_in_float32(dtype, holes):
    rewards, values, mask = (
        (0.1 * noise(2, 1025)).to(dtype),
        noise(2, 1025, seed=1).to(dtype),
        torch.ones(2, 1025),
    )
    mask[:, 3:9] = 0 if holes else 1
    functions = [
        lambda r, v: gae(r, v, mask, gamma=1.0, lam=1.0),
        lambda r, v: [td_errors(r, v, mask, gamma=0.9), monte_carlo_returns(r, mask, gamma=1.0)],
        lambda r, v: [n_step_advantages(r, v, mask, n=5, gamma=1.0)],
    ]
    for function in functions:
        for ours, wanted in zip(
            function(rewards, values), function(rewards.float(), values.float()), strict=True
        ):
            assert ours.dtype is dtype
            assert torch.equal(ours, wanted.to(dtype))


def test_an_advantage_of_no_steps_is_refused():
    with pytest.raises(ValueError, match="at least one step"):
        n_step_advantages(tensor([[1]]), tensor([[1]]), torch.ones(1, 1), n=0, gamma=1.0)
