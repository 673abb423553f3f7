"""Laws of the algorithms: what holds for every reward, value and mask. float64 unless the law is about another type."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from telescope.algorithms import (
    adapt_kl_coef,
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    entropy_from_logits,
    gae,
    kl_penalty,
    log_probs_from_logits,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
    monte_carlo_returns,
    n_step_advantages,
    surrogate_loss,
    td_errors,
)
from telescope.batch import TokenBatch

law = settings(max_examples=60, deadline=None, derandomize=True)
MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
# holes at the start, inside, at the end; no token; one token; every token
HOLES = torch.tensor(
    [
        [0, 0, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 0, 1],
        [1, 1, 1, 0, 0, 0, 0],
        [0] * 7,
        [0, 0, 0, 1, 0, 0, 0],
        [1] * 7,
    ]
)


def close(ours: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=atol)


def tensor(numbers) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass
class Rows:
    """A batch of responses with masks of any pattern, and the scalars of GAE."""

    rewards: Tensor
    values: Tensor
    mask: Tensor
    bootstrap: Tensor
    gamma: float
    lam: float

    def gae(self, **changed):
        return gae(
            self.rewards,
            self.values,
            self.mask,
            **{"gamma": self.gamma, "lam": self.lam, "bootstrap": self.bootstrap} | changed,
        )

    def td_errors(self):
        return td_errors(
            self.rewards, self.values, self.mask, gamma=self.gamma, bootstrap=self.bootstrap
        )

    def observed(self):
        return monte_carlo_returns(
            self.rewards, self.mask, gamma=self.gamma, bootstrap=self.bootstrap
        )

    def n_step(self, n: int):
        return n_step_advantages(
            self.rewards, self.values, self.mask, n=n, gamma=self.gamma, bootstrap=self.bootstrap
        )

    def kept(self, x: Tensor) -> Tensor:
        return x.where(self.mask.bool(), 0.0)

    def actions(self):
        """(row, its mask-1 positions in order) of every row."""
        return [(b, row.nonzero()[:, 0].tolist()) for b, row in enumerate(self.mask)]


@st.composite
def rows(draw) -> Rows:
    length = draw(st.integers(1, 9))
    mask = torch.tensor(
        draw(
            st.lists(
                st.lists(st.integers(0, 1), min_size=length, max_size=length),
                min_size=1,
                max_size=3,
            )
        )
    )
    seed, fraction = draw(st.integers(0, 99)), st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
    shape = tuple(mask.shape)
    return Rows(
        noise(*shape, seed=seed),
        noise(*shape, seed=seed + 100),
        mask,
        noise(shape[0], seed=seed + 200),
        draw(fraction),
        draw(fraction),
    )


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


# --- Advantages


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


# --- Every function: (a, b, c, mask) -> tensors. a, b, c stand for whatever [B, T] the function takes.


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


# --- Whitening


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


# --- Losses


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


# --- Logits and KL


def test_log_probs_and_entropy_of_a_coin():
    logits = tensor([0.0, math.log(3)])  # probabilities ¼ and ¾
    close(
        log_probs_from_logits(logits.expand(2, 2), torch.tensor([0, 1])).exp(), tensor([0.25, 0.75])
    )
    close(entropy_from_logits(logits), tensor(-0.25 * math.log(0.25) - 0.75 * math.log(0.75)))
    close(entropy_from_logits(logits + 1000), entropy_from_logits(logits), atol=1e-9)


def test_a_token_of_probability_zero_adds_no_entropy_and_no_kl():
    logits = tensor([0.0, 0.0, -math.inf])
    close(entropy_from_logits(logits), tensor(math.log(2)))
    close(kl_penalty(logits, logits, "full"), tensor(0.0))


@pytest.mark.parametrize("d", [0.0, 0.5, -0.5, 2.0, -2.0])
def test_the_closed_forms_of_the_kl_estimates(d):
    forms = {"k1": d, "abs": abs(d), "k2": d * d / 2, "k3": math.exp(-d) + d - 1}
    slopes = {
        "k1": 1.0,
        "abs": math.copysign(1.0, d) if d else 0.0,
        "k2": d,
        "k3": 1 - math.exp(-d),
    }
    for kind, value in forms.items():
        for name, slope in ((kind, slopes[kind]), (kind + "+", d)):  # + takes k2's gradient
            log_prob = tensor(d - 1).requires_grad_()
            kl = kl_penalty(log_prob, tensor(-1.0), name)
            close(kl.detach(), tensor(value))
            close(torch.autograd.grad(kl, log_prob)[0], tensor(slope))


def test_full_kl_is_the_expectation_of_k1_and_of_k3_and_its_gradient_that_of_k2():
    logits, ref = noise(5).requires_grad_(), noise(5, seed=1).log_softmax(-1)
    log_p, full = logits.log_softmax(-1), kl_penalty(logits, ref, "full")
    p = log_p.exp().detach()
    close((p * kl_penalty(log_p, ref, "k1")).sum(), full)
    close((p * kl_penalty(log_p, ref, "k3")).sum(), full)
    of_k2 = torch.autograd.grad(
        (p * kl_penalty(log_p, ref, "k2")).sum(), logits, retain_graph=True
    )[0]
    close(of_k2, torch.autograd.grad(full, logits)[0])
    assert kl_penalty(logits, logits, "full").abs() < 1e-15


def test_k3_is_never_negative():
    d = torch.linspace(-40, 40, 8001, dtype=torch.float64)
    k3 = kl_penalty(d, torch.zeros_like(d), "k3")
    assert (k3 >= 0).all()
    assert k3.max() == 10  # the cap


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative_near_zero_either(dtype):
    d = torch.linspace(-1e-3, 1e-3, 2001, dtype=dtype)
    assert (kl_penalty(d, torch.zeros_like(d), "k3") >= 0).all()
    assert (kl_penalty(d / 1e6, torch.zeros_like(d), "k3") >= 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_k3_of_a_token_that_the_reference_bans_is_the_cap_and_pulls_back(dtype):
    log_probs = torch.tensor([-0.5, -1.0], dtype=dtype, requires_grad=True)
    k3 = kl_penalty(log_probs, torch.tensor([-math.inf, -1.0], dtype=dtype), "k3")
    assert k3.tolist() == [10.0, 0.0]
    assert torch.autograd.grad(k3.sum(), log_probs)[0].tolist() == [1.0, 0.0]  # 1 − e^(−∞)
    assert kl_penalty(log_probs, torch.tensor([-math.inf, -1.0], dtype=dtype), "k3+").tolist() == [
        10.0,
        0.0,
    ]


def test_an_unknown_kl_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'k4'; use one of k1, abs, k2, k3, full"):
        kl_penalty(tensor([0.0]), tensor([0.0]), "k4")


@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "k3", "k3+"])
def test_a_nan_reference_in_padding_does_not_reach_the_kl_loss_of_a_batch(kind):
    mask = torch.tensor([[1, 0]])
    batch = TokenBatch({"response_mask": mask, "ref_log_prob": tensor([[-1.0, math.nan]])})
    log_probs = tensor([[-2.0, -2.0]]).requires_grad_()
    aggregate(kl_penalty(log_probs, batch["ref_log_prob"], kind), mask).backward()
    assert log_probs.grad[0, 0] != 0
    assert log_probs.grad[0, 1] == 0


@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "k3", "full", "k1+", "k2+", "k3+"])
def test_kl_and_logits_functions_do_not_modify_their_inputs(kind):
    x, y, tokens = noise(4, 5), noise(4, 5, seed=1), torch.tensor([0, 1, 2, 3])
    for _ in (kl_penalty(x, y, kind), entropy_from_logits(x), log_probs_from_logits(x, tokens)):
        assert torch.equal(x, noise(4, 5))
        assert torch.equal(y, noise(4, 5, seed=1))


@law
@given(st.lists(st.tuples(st.floats(), st.integers(1, 10**7)), max_size=20))
def test_beta_stays_positive_and_finite_whatever_the_kl(updates):
    beta = 0.1
    for kl, n_steps in updates:
        before, beta = beta, adapt_kl_coef(beta, kl, target=0.05, horizon=1000, n_steps=n_steps)
        assert 0.8 * before <= beta <= 1.2 * before
        assert math.isfinite(kl) or beta == before


def test_beta_rises_by_a_fifth_over_a_horizon_of_too_much_kl():
    assert adapt_kl_coef(0.1, 0.5, target=0.25, horizon=100, n_steps=100) == pytest.approx(0.12)
    assert adapt_kl_coef(0.1, 0.5, target=0.25, horizon=100, n_steps=50) == pytest.approx(0.11)
    assert adapt_kl_coef(0.1, 0.25, target=0.25, horizon=100, n_steps=50) == 0.1
    assert adapt_kl_coef(0.1, 0.0, target=0.25, horizon=100, n_steps=100) == pytest.approx(0.08)
