"""Laws of the clipped losses of actor and critic, and of aggregation."""

import math

import pytest
import torch
from hypothesis import given

from telescope.algorithms import (
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    surrogate_loss,
)
from tests.algorithms.law_rows import HOLES, MODES, close, law, noise, rows, tensor


def one_token(loss, ratio: float, advantage: float, **options):
    log_prob = tensor([[math.log(ratio)]]).requires_grad_()
    terms = loss(log_prob, tensor([[0.0]]), tensor([[advantage]]), torch.ones(1, 1), **options)
    return terms, torch.autograd.grad(terms.loss.sum(), log_prob)[0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.5, 1.0, -1.2, True),
        (0.5, 1.0, -0.5, False),
        (1.5, -1.0, 1.5, False),
        (0.5, -1.0, 0.8, True),
        (1.1, 2.0, -2.2, False),
    ],
)
def test_clipping_stops_only_steps_that_went_too_far_in_the_wanted_direction(
    ratio, advantage, loss, clipped
):
    terms, grad = one_token(clipped_policy_loss, ratio, advantage)
    close(terms.loss.detach(), tensor([[loss]]))
    assert terms.clipped.item() is clipped
    close(grad, tensor([[0.0 if clipped else -ratio * advantage]]))


def test_the_two_sides_of_the_clip_are_separate():
    assert one_token(clipped_policy_loss, 1.5, 1.0, clip_low=0.1, clip_high=0.4)[
        0
    ].loss.item() == pytest.approx(-1.4)
    assert one_token(clipped_policy_loss, 0.5, -1.0, clip_low=0.1, clip_high=0.4)[
        0
    ].loss.item() == pytest.approx(0.9)


def test_dual_clip_stops_an_exploded_ratio_of_a_bad_token():
    terms, grad = one_token(clipped_policy_loss, 5.0, -1.0, dual_clip=3.0)
    assert terms.loss.item() == pytest.approx(3.0)
    assert terms.dual_clipped.item() is True
    assert grad.item() == 0


@law
@given(rows())
def test_a_ratio_of_one_gives_minus_the_advantage_and_clips_nothing(r):
    for terms in (
        clipped_policy_loss(r.values, r.values, r.rewards, r.mask, dual_clip=3.0),
        surrogate_loss(r.values, r.values, r.rewards, r.mask),
    ):
        assert torch.equal(terms.loss, r.kept(-r.rewards))
        assert torch.equal(terms.ratio, r.kept(torch.ones_like(r.rewards)))
        assert not (terms.clipped | terms.dual_clipped).any()


@law
@given(rows())
def test_the_clipped_objective_is_never_above_the_unclipped_and_dual_clip_bounds_it(r):
    new, old, advantages = r.values, r.values.flip(0, 1), r.rewards
    cpi, clip = (
        surrogate_loss(new, old, advantages, r.mask).loss,
        clipped_policy_loss(new, old, advantages, r.mask).loss,
    )
    dual = clipped_policy_loss(new, old, advantages, r.mask, dual_clip=3.0).loss
    assert (clip >= cpi).all()
    assert (dual <= clip).all()
    assert (dual <= 3 * advantages.abs() + 1e-12).all()
    assert torch.equal(dual[advantages >= 0], clip[advantages >= 0])


def test_value_loss_is_the_larger_of_the_two_errors_and_never_moves_its_target():
    values, returns = tensor([[1.0, 0.1]]).requires_grad_(), tensor([[1.0, 1.0]]).requires_grad_()
    terms = clipped_value_loss(
        values, tensor([[0.0, 0.0]]), returns, torch.ones(1, 2), clip_value=0.5
    )
    close(terms.loss.detach(), tensor([[0.125, 0.405]]))  # ½·(0.5 − 1)², ½·(0.1 − 1)²
    assert terms.clipped.tolist() == [[True, False]]
    to_values, to_returns = torch.autograd.grad(
        terms.loss.sum(), (values, returns), allow_unused=True
    )
    close(to_values, tensor([[0.0, -0.9]]))
    assert to_returns is None
    plain = clipped_value_loss(
        values, tensor([[0.0, 0.0]]), returns, torch.ones(1, 2), clip_value=None
    )
    close(plain.loss.detach(), tensor([[0.0, 0.405]]))
    assert not plain.clipped.any()


def test_a_row_of_three_and_a_row_of_one_in_each_aggregation():
    loss, mask = (
        tensor([[1, 2, 3], [4, 9, 9], [9, 9, 9]]),
        torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]),
    )
    assert [aggregate(loss, mask, mode).item() for mode in MODES] == pytest.approx(
        [2.5, 10, 5, 3, 5 / 3]
    )
    with pytest.raises(ValueError, match="use one of token-mean"):
        aggregate(loss, mask, "mean")


def test_a_loss_without_columns_is_zero_also_with_its_own_width_as_horizon():
    assert aggregate(torch.zeros(2, 0), torch.zeros(2, 0), "seq-mean-token-sum-norm") == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("split", [[6], [3, 3], [1, 5], [1] * 6], ids=str)
def test_micro_batches_add_up_to_the_minibatch_in_loss_and_gradient(mode, split):
    whole = noise(6, 7).requires_grad_()
    parts = noise(6, 7).requires_grad_()
    aggregate(whole, HOLES, mode, horizon=7).backward()
    shared = {"num_tokens": HOLES.sum(), "num_rows": HOLES.any(1).sum(), "horizon": 7}
    losses = []
    for loss, mask in zip(parts.split(split), HOLES.split(split), strict=True):
        width = (
            int(mask.any(0).nonzero().max()) + 1 if mask.any() else 1
        )  # trimmed, as the trainer's micro-batches are
        losses.append(aggregate(loss[:, :width], mask[:, :width], mode, **shared))
    sum(losses).backward()
    close(sum(losses), aggregate(whole, HOLES, mode, horizon=7))
    close(parts.grad, whole.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "bounded"),
    [
        (2.9, -1.0, 2.9, False),
        (2.999, -1.0, 2.999, False),
        (3.1, -1.0, 3.0, True),
        (3.1, -2.0, 6.0, True),
        (3.1, 1.0, -1.2, False),
    ],
)
def test_the_dual_clip_is_recorded_exactly_where_it_bounds_the_loss(
    ratio, advantage, loss, bounded
):
    log_prob = tensor([[math.log(ratio)]])
    terms = clipped_policy_loss(
        log_prob, tensor([[0.0]]), tensor([[advantage]]), torch.ones(1, 1), dual_clip=3.0
    )
    close(terms.loss, tensor([[loss]]))
    assert terms.dual_clipped.item() is bounded
