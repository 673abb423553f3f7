"""Laws of masks and whitening, for every function: what stands off the mask is never read."""

import math

import pytest
import torch
from hypothesis import given
from torch import Tensor

from telescope.algorithms import (
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    gae,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
    monte_carlo_returns,
    n_step_advantages,
    surrogate_loss,
    td_errors,
)
from tests.algorithms.law_rows import HOLES, MODES, close, law, noise, rows, tensor


def _terms(terms) -> tuple[Tensor, ...]:
    return tuple(term for term in vars(terms).values() if term is not None)


SCAN = {"gamma": 0.9, "bootstrap": tensor([0.5, -1, 2, 3, 0, 1])}

FUNCTIONS = {
    "td_errors": lambda a, b, c, m: (td_errors(a, b, m, **SCAN),),
    "gae": lambda a, b, c, m: gae(a, b, m, lam=0.8, **SCAN),
    "monte_carlo_returns": lambda a, b, c, m: (monte_carlo_returns(a, m, **SCAN),),
    "n_step_advantages": lambda a, b, c, m: (n_step_advantages(a, b, m, n=2, **SCAN),),
    "masked_sum": lambda a, b, c, m: (masked_sum(a, m), masked_sum(a, m, -1)),
    "masked_mean": lambda a, b, c, m: (masked_mean(a, m), masked_mean(a, m, -1)),
    "masked_var": lambda a, b, c, m: (masked_var(a, m), masked_var(a, m, unbiased=False)),
    "masked_whiten": lambda a, b, c, m: (
        masked_whiten(a, m),
        masked_whiten(a, m, shift_mean=False),
    ),
    "clipped_policy_loss": lambda a, b, c, m: _terms(clipped_policy_loss(a, b, c, m)),
    "clipped_policy_loss dual": lambda a, b, c, m: _terms(
        clipped_policy_loss(a, b, c, m, dual_clip=1.5)
    ),
    "surrogate_loss": lambda a, b, c, m: _terms(surrogate_loss(a, b, c, m)),
    "clipped_value_loss": lambda a, b, c, m: _terms(clipped_value_loss(a, b, c, m)),
    "clipped_value_loss plain": lambda a, b, c, m: _terms(
        clipped_value_loss(a, b, c, m, clip_value=None)
    ),
    **{
        f"aggregate {mode}": lambda a, b, c, m, mode=mode: (aggregate(a, m, mode, horizon=7),)
        for mode in MODES
    },
}

every_function = pytest.mark.parametrize(
    "function", [pytest.param(f, id=name) for name, f in FUNCTIONS.items()]
)


def abc() -> list[Tensor]:
    return [noise(*HOLES.shape, seed=seed) for seed in (1, 2, 3)]


def outputs_and_gradients(
    function, inputs: list[Tensor], mask: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = function(*leaves, mask)
    total = sum((out * noise(*out.shape, seed=7)).sum() for out in outputs if out.requires_grad)
    grads = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [out.detach() for out in outputs], list(grads)


@every_function
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_what_stands_off_the_mask_changes_no_output_and_no_gradient(function, garbage):
    dirty = [x.where(HOLES.bool(), garbage) for x in abc()]
    clean, ours = (
        outputs_and_gradients(function, abc(), HOLES),
        outputs_and_gradients(function, dirty, HOLES),
    )
    for side, side_clean in zip(ours, clean, strict=True):
        for mine, wanted in zip(side, side_clean, strict=True):
            assert torch.equal(mine, wanted)
            if mine.shape == HOLES.shape:
                assert not mine[HOLES == 0].any()


@every_function
def test_deleting_the_positions_off_the_mask_changes_nothing(function):
    def compact(x):
        return torch.stack(
            [torch.cat([row[on], row[~on]]) for row, on in zip(x, HOLES.bool(), strict=True)]
        )

    pushed = [compact(x) for x in abc()]
    for mine, wanted in zip(
        function(*abc(), HOLES), function(*pushed, compact(HOLES)), strict=True
    ):
        close(*((compact(mine), wanted) if mine.shape == HOLES.shape else (mine, wanted)))


@every_function
def test_bool_int_and_float_masks_agree(function):
    for mask in (HOLES.bool(), HOLES.double(), HOLES.float()):
        for mine, wanted in zip(function(*abc(), mask), function(*abc(), HOLES), strict=True):
            assert torch.equal(mine, wanted)


@every_function
@pytest.mark.parametrize("mask", [HOLES, torch.ones_like(HOLES)], ids=["holes", "full"])
def test_inputs_are_not_modified(function, mask):
    inputs, given_mask, bootstrap = abc(), mask.clone(), SCAN["bootstrap"].clone()
    outputs = function(*inputs, given_mask)
    for out in outputs:
        if out.ndim and out.dtype is torch.float64:
            out.add_(1)  # nor are they shared with a result
    assert all(torch.equal(x, y) for x, y in zip(inputs, abc(), strict=True))
    assert torch.equal(given_mask, mask)
    assert torch.equal(SCAN["bootstrap"], bootstrap)


@every_function
def test_rows_without_a_token_give_zeros(function):
    for out in function(*abc(), torch.zeros_like(HOLES)):
        assert not out.any()


@pytest.mark.parametrize("shape", [(6, 0), (0, 5), (0, 0)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_without_rows_or_without_columns_is_no_error(name, shape, monkeypatch):
    monkeypatch.setitem(SCAN, "bootstrap", torch.ones(shape[0], dtype=torch.float64))
    empty = torch.zeros(shape, dtype=torch.float64)
    for out in FUNCTIONS[name](empty, empty, empty, empty):
        assert out.shape in (shape, shape[:1], ())
        assert not out.any()


@law
@given(rows())
def test_whitened_tokens_have_mean_zero_and_bessel_variance_one_over_the_whole_batch(r):
    on, whitened = r.mask.bool(), masked_whiten(r.values, r.mask, eps=0.0)[r.mask.bool()]
    if on.sum() > 1:
        close(whitened.mean(), tensor(0.0))
        close(whitened.var(), tensor(1.0))


def test_whitening_is_over_the_batch_and_not_per_row():
    whitened = masked_whiten(tensor([[1, 1], [3, 3]]), torch.ones(2, 2), eps=0.0)
    close(whitened, tensor([[-1, -1], [1, 1]]) * 0.75**0.5)  # per row they would all be 0


@pytest.mark.parametrize("number", [0.7, 0.1, 1 / 3, -2.3, 1e4])
@pytest.mark.parametrize("count", [2, 3, 7, 8, 1000])
def test_equal_numbers_whiten_to_zero_exactly_in_float32(number, count):
    assert not masked_whiten(torch.full((count, 1), number), torch.ones(count, 1)).any()
    assert (
        masked_whiten(torch.full((count, 1), number, dtype=torch.float64), torch.ones(count, 1))
        .abs()
        .max()
        < 1e-7
    )


def test_one_token_whitens_to_zero():
    assert torch.equal(
        masked_whiten(tensor([[5.0, 7.0]]), torch.tensor([[0, 1]])), tensor([[0.0, 0.0]])
    )


def test_statistics_of_four_numbers():
    values, mask = tensor([[1, 3, 9], [5, 7, 9]]), torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert masked_sum(values, mask) == 16
    assert masked_mean(values, mask, -1).tolist() == [2, 6]
    assert masked_var(values, mask, unbiased=False) == 5
    close(masked_var(values, mask), tensor(20 / 3))


def test_a_hundred_millionth_is_added_to_the_variance():
    """±0.0001 have a variance of 2e-8. With 1e-8 added, σ is √3·1e-4 and both whiten to ±1/√3."""
    whitened = masked_whiten(tensor([[1e-4, -1e-4]]), torch.ones(1, 2))
    close(whitened, tensor([[3**-0.5, -(3**-0.5)]]))
