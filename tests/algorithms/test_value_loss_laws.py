"""The critic's other losses: Huber and a histogram of values."""

import math

import pytest
import torch

from telescope.algorithms import (
    clipped_value_loss,
    hl_gauss_loss,
    hl_gauss_targets,
    hl_gauss_values,
    huber_value_loss,
)
from tests.algorithms.test_group_laws import NAN


def test_huber_is_the_squared_error_near_and_linear_far():
    values, zeros, mask = (
        torch.tensor([[0.5, -3.0, NAN]]),
        torch.zeros(1, 3),
        torch.tensor([[1, 1, 0]]),
    )
    near = clipped_value_loss(values, zeros, zeros, mask, clip_value=None)
    far = huber_value_loss(values, zeros, zeros, mask, clip_value=None, delta=1.0)
    assert far.loss[0].tolist() == pytest.approx([0.125, 2.5, 0.0])
    assert near.loss[0, 0] == far.loss[0, 0]
    wide = huber_value_loss(values, zeros + 0.1, zeros, mask, clip_value=0.2, delta=100.0)
    torch.testing.assert_close(
        wide.loss, clipped_value_loss(values, zeros + 0.1, zeros, mask, clip_value=0.2).loss
    )


def test_a_return_becomes_shares_of_bins_that_can_be_checked_by_hand():
    """Two bins over [−1, 1], σ = 1: Φ(0) = 0.5, Φ(−1) = 0.158655, Φ(−2) = 0.022750."""
    returns, mask = torch.tensor([[0.0, 1.0, -7.0, NAN]]), torch.tensor([[1, 1, 1, 0]])
    shares = hl_gauss_targets(returns[:, :3], bins=2, low=-1.0, high=1.0, sigma=1.0)[0]
    end = (0.5 - 0.158655) / (0.5 - 0.022750)
    assert shares.flatten().tolist() == pytest.approx(
        [0.5, 0.5, 1 - end, end, end, 1 - end], abs=2e-6
    )
    logits = torch.tensor([0.0, math.log(3)]).expand(1, 4, 2)  # p = 1/4, 3/4
    terms = hl_gauss_loss(logits, returns, mask, low=-1.0, high=1.0, sigma=1.0)
    low, high = math.log(4), math.log(4 / 3)
    expected = [(low + high) / 2, (1 - end) * low + end * high, end * low + (1 - end) * high, 0.0]
    assert terms.loss[0].tolist() == pytest.approx(expected, abs=2e-6)
    assert hl_gauss_values(logits, low=-1.0, high=1.0)[0].tolist() == pytest.approx(
        [0.25] * 4
    )  # ¼·(−½) + ¾·½
    assert not terms.clipped.any()


@pytest.mark.parametrize("spread", [0.3, 0.5, 0.75, 1.0])
def test_the_shares_of_a_return_sum_to_one_and_mean_it(spread: float):
    low, high, bins = -1.0, 3.0, 40
    width, sigma = 0.1, 0.1 * spread
    returns = torch.linspace(low + 5 * sigma, high - 5 * sigma, 997, dtype=torch.float64)
    middles = low + width * (torch.arange(bins, dtype=torch.float64) + 0.5)
    shares = hl_gauss_targets(returns, bins=bins, low=low, high=high, sigma=sigma)
    torch.testing.assert_close(shares.sum(-1), torch.ones_like(returns))
    error = float((shares @ middles - returns).abs().max()) / width
    assert error <= math.exp(-2 * (math.pi * spread) ** 2) / math.pi + 2e-6
    at_end = (
        hl_gauss_targets(
            torch.tensor([high, 99.0], dtype=torch.float64),
            bins=bins,
            low=low,
            high=high,
            sigma=sigma,
        )
        @ middles
    )
    assert at_end[0] == at_end[1]
    assert 0.4 * width < high - float(at_end[0]) < 0.9 * width


@pytest.mark.parametrize("sigma", [1e4, 1e20, 1e308])
def test_a_gaussian_much_wider_than_the_range_gives_every_bin_the_same(sigma: float):
    logits, returns, mask = torch.zeros(1, 2, 4), torch.tensor([[0.5, -9.0]]), torch.ones(1, 2)
    terms = hl_gauss_loss(logits, returns, mask, low=-1.0, high=1.0, sigma=sigma)
    assert terms.loss[0].tolist() == pytest.approx([math.log(4)] * 2)
    assert terms.log_p.shape == (1, 2, 4)
    shares = hl_gauss_targets(returns, bins=4, low=-1.0, high=1.0, sigma=sigma)
    assert shares.flatten().tolist() == pytest.approx([0.25] * 8, abs=1e-8)


def test_the_gradient_of_a_histogram_is_prediction_less_target():
    torch.manual_seed(0)
    logits, returns, mask = (
        torch.randn(2, 3, 9, requires_grad=True),
        torch.randn(2, 3),
        torch.tensor([[1, 1, 0], [1, 1, 1]]),
    )
    terms = hl_gauss_loss(logits, returns, mask, low=-2.0, high=2.0, sigma=0.3)
    terms.loss.sum().backward()
    shares = hl_gauss_targets(returns, bins=9, low=-2.0, high=2.0, sigma=0.3).float()
    torch.testing.assert_close(
        logits.grad, (logits.detach().softmax(-1) - shares) * mask.unsqueeze(-1)
    )
    recorded = (
        terms.first_bin.unsqueeze(-1) + torch.arange(terms.log_p.shape[-1])
    ) * mask.unsqueeze(-1)
    held = torch.where(mask.bool(), shares.gather(-1, recorded).sum(-1), 1.0)
    torch.testing.assert_close(held, torch.ones(2, 3))  # the recorded bins hold the target
    worked = -(shares.gather(-1, recorded) * terms.log_p).sum(-1)
    torch.testing.assert_close(worked, terms.loss)


def test_a_histogram_that_fits_its_target_has_its_value():
    returns, mask = (
        torch.tensor([[0.3, -0.62, 5.0, NAN]], dtype=torch.float64),
        torch.tensor([[1, 1, 1, 0]]),
    )
    logits = torch.zeros(1, 4, 41, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = hl_gauss_loss(logits, returns, mask, low=-1.0, high=1.0, sigma=0.05).loss.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    values = hl_gauss_values(logits.detach(), low=-1.0, high=1.0)[0]
    assert values[:2].tolist() == pytest.approx([0.3, -0.62], abs=2e-3)
    assert 0.9 < float(values[2]) <= 1.0  # a return beyond the range is taken as its edge
    terms = hl_gauss_loss(logits, returns, mask, low=-1.0, high=1.0, sigma=0.05)
    assert terms.loss[0, 3] == 0
    assert logits.grad[0, 3].abs().max() == 0
