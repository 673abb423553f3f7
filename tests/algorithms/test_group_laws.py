"""Laws of the estimators without a critic and of the losses beside PPO's clip; numbers small enough to check in the head."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from telescope.algorithms import (
    adapt_penalty,
    cispo_loss,
    clip_cov_loss,
    clipped_policy_loss,
    clipped_value_loss,
    dppo_loss,
    dr_grpo,
    dro_loss,
    gae,
    geo_mean_loss,
    grpo,
    grpo_passk,
    gspo_loss,
    hl_gauss_loss,
    hl_gauss_targets,
    hl_gauss_values,
    huber_value_loss,
    kept_by_ratio,
    kl_cov_loss,
    kl_penalty_loss,
    last_actions,
    length_adaptive_lam,
    masked_whiten,
    opo,
    optimal_token_baseline,
    rloo,
    sapo_loss,
    select_clip_cov,
    select_kl_cov,
    spread,
    surrogate_loss,
)

BY_GROUP = [grpo, dr_grpo, rloo, opo, grpo_passk]
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
NAN = float("nan")


def batch(seed: int, rows: int = 8, width: int = 6):
    make = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=make, dtype=torch.float64) > 0.3
    rewards = torch.randn(rows, width, generator=make, dtype=torch.float64).masked_fill(~mask, NAN)
    return rewards, mask, torch.randint(0, 3, (rows,), generator=make)


# ---- groups


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


# ---- losses

LOSSES = {
    "clip": lambda *x: clipped_policy_loss(*x, **CLIP),
    "cpi": surrogate_loss,
    "kl_penalty": lambda *x: kl_penalty_loss(*x, beta=0.5),
    "gspo": lambda *x: gspo_loss(*x, **CLIP),
    "sapo": lambda *x: sapo_loss(*x, tau_positive=1.0, tau_negative=1.05),
    "geo_mean": lambda *x: geo_mean_loss(*x, **CLIP),
    "cispo": lambda *x: cispo_loss(*x, **CLIP),
    "dppo_tv": lambda *x: dppo_loss(*x, divergence="tv", ratio_cap=20.0, **CLIP),
    "dppo_kl": lambda *x: dppo_loss(*x, divergence="kl", ratio_cap=20.0, **CLIP),
    "dro": lambda *x: dro_loss(*x, beta=1.0),
    "clip_cov": lambda new, old, a, m: clip_cov_loss(new, old, a, m, torch.zeros_like(m), **CLIP),
    "kl_cov": lambda new, old, a, m: kl_cov_loss(new, old, a, m, m, beta=1.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_every_loss_has_the_policy_gradient(name):
    """−A_t·∇log π for each token; geo_mean spreads the response's mean advantage instead."""
    old = -torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    advantages = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [1, 0, 0, 0]]).bool()
    new = old.clone().requires_grad_()
    gradient = torch.autograd.grad(LOSSES[name](new, old, advantages, mask).loss.sum(), new)[0]
    wanted = -advantages.where(mask, 0.0)
    if name == "geo_mean":
        wanted = (
            (wanted.sum(1, keepdim=True) / mask.sum(1, keepdim=True))
            .expand_as(wanted)
            .where(mask, 0.0)
        )
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("name", LOSSES)
def test_what_stands_off_the_mask_reaches_neither_loss_nor_gradient(name):
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    results = []
    for garbage in (0.0, NAN, math.inf):
        fill = lambda x, g=garbage: torch.tensor(x).where(mask, g)  # noqa: E731
        new = fill([[-0.5, -1.0, 0.0]] * 2).requires_grad_()
        terms = LOSSES[name](new, fill([[-0.7, -0.4, 0.0]] * 2), fill([[1.0, -2.0, 0.0]] * 2), mask)
        gradient = torch.autograd.grad(terms.loss.sum(), new)[0]
        assert (gradient[~mask] == 0).all()
        assert all((term[~mask] == 0).all() for term in vars(terms).values())
        results.append((terms.loss.detach(), gradient))
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_gspo_clips_by_the_response_not_by_the_token():
    old, new = (
        torch.zeros(1, 2),
        torch.tensor([[0.5, -0.5]]),
    )  # ratios 1.65 and 0.61, but together 1
    terms = gspo_loss(new, old, torch.ones(1, 2), torch.ones(1, 2), **CLIP)
    assert terms.loss.tolist() == [[-1.0, -1.0]]
    assert not terms.clipped.any()
    assert clipped_policy_loss(
        new, old, torch.ones(1, 2), torch.ones(1, 2), **CLIP
    ).clipped.tolist() == [[True, False]]


def test_geo_mean_takes_a_token_without_an_advantage_as_unmoved():
    new, old = torch.tensor([[-0.5, -0.5]]), torch.tensor([[-1.0, -0.5]])  # log ρ = ½ and 0

    def loss(*a: float) -> float:
        terms = geo_mean_loss(new, old, torch.tensor([a]), torch.ones(1, 2), **CLIP)
        return terms.loss.unique().item()

    assert loss(0.0, 1.0) == pytest.approx(-0.5)  # −e⁰·½
    assert loss(-1.0, 1.5) == pytest.approx(-math.exp(0.25) / 4)  # free to rise
    assert loss(1.0, 1.0) == pytest.approx(-math.exp(0.1))  # bounded by ε = 0.2


def test_cispo_keeps_the_gradient_where_ppo_drops_it():
    old, new, one = torch.zeros(1, 1), torch.tensor([[1.0]], requires_grad=True), torch.ones(1, 1)
    assert (
        torch.autograd.grad(clipped_policy_loss(new, old, one, one, **CLIP).loss.sum(), new)[0] == 0
    )
    assert torch.autograd.grad(cispo_loss(new, old, one, one, **CLIP).loss.sum(), new)[
        0
    ] == pytest.approx(-1.2)


def test_cispo_records_the_ratios_it_caps_whatever_the_sign_of_the_advantage():
    old = torch.zeros(1, 5)
    new = torch.tensor([[0.5, 0.9, 1.0, 1.1, 2.0]]).log()  # the ratios
    for advantage in (1.0, -1.0):
        terms = cispo_loss(
            new, old, torch.full((1, 5), advantage), torch.tensor([[1, 1, 1, 1, 1]]), **CLIP
        )
        assert terms.clipped.tolist() == [[True, False, False, False, True]]
    padded = cispo_loss(new, old, torch.ones(1, 5), torch.tensor([[0, 1, 1, 1, 1]]), **CLIP)
    assert padded.clipped.tolist() == [[False, False, False, False, True]]


def test_gspo_records_every_token_of_a_clipped_response_and_of_no_other():
    old = torch.zeros(2, 2)
    new = torch.tensor([[0.5, 0.1], [0.1, 0.1]])  # mean log ratios 0.3 and 0.1; log 1.2 is 0.18
    terms = gspo_loss(new, old, torch.ones(2, 2), torch.tensor([[1, 1], [1, 0]]), **CLIP)
    assert terms.clipped.tolist() == [[True, True], [False, False]]
    falling = gspo_loss(new, old, -torch.ones(2, 2), torch.ones(2, 2), **CLIP)
    assert not falling.clipped.any()  # a larger ratio of a bad response is a loss that counts


def test_geo_mean_records_the_tokens_it_bounds():
    old = torch.zeros(1, 4)
    new = torch.tensor([[0.5, -0.5, 0.5, -0.5]])
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    terms = geo_mean_loss(new, old, advantages, torch.ones(1, 4), **CLIP)
    assert terms.clipped.tolist() == [[True, False, False, True]]


def test_clip_cov_records_the_tokens_it_was_told_to_drop_and_those_that_ppo_clips():
    old = torch.zeros(1, 3)
    new = torch.tensor([[1.5, 1.0, 1.0]]).log()
    selected = torch.tensor([[False, True, False]])
    terms = clip_cov_loss(new, old, torch.ones(1, 3), torch.ones(1, 3), selected, **CLIP)
    assert terms.clipped.tolist() == [[True, True, False]]
    assert terms.loss[0].tolist() == pytest.approx([-1.2, 0.0, -1.0])


def test_dppo_stops_at_the_divergence_and_only_on_the_way_out():
    old = torch.tensor([[0.5, 0.5, 0.001]]).log()
    new = torch.tensor(
        [[0.8, 0.8, 0.01]]
    ).log()  # |π − π_old| = 0.3, 0.3 and 0.009, though the last ratio is 10
    advantages, mask = torch.tensor([[1.0, -1.0, 1.0]]), torch.ones(1, 3)
    terms = dppo_loss(new, old, advantages, mask, divergence="tv", ratio_cap=20.0, **CLIP)
    assert terms.clipped.tolist() == [[True, False, False]]  # the second is on its way back
    assert terms.loss[0, 0] == 0


def test_dro_is_still_where_the_log_ratio_is_the_advantage_over_beta():
    new = torch.tensor([[-1.0]], requires_grad=True)
    loss = dro_loss(
        new, torch.tensor([[-1.5]]), torch.tensor([[1.0]]), torch.ones(1, 1), beta=2.0
    ).loss.sum()
    assert torch.autograd.grad(loss, new)[0] == 0


def test_the_penalty_weight_doubles_and_halves_and_survives_nan():
    assert adapt_penalty(1.0, 0.1, target=0.01) == 2.0
    assert adapt_penalty(1.0, 0.001, target=0.01) == 0.5
    assert adapt_penalty(1.0, 0.012, target=0.01) == 1.0
    assert adapt_penalty(1.0, NAN, target=0.01) == 1.0


def test_covariances_choose_as_many_tokens_as_asked_from_the_mask():
    make = torch.Generator().manual_seed(0)
    new, advantages = -torch.rand(20, 10, generator=make), torch.randn(20, 10, generator=make)
    mask = torch.rand(20, 10, generator=make) > 0.3
    top = select_kl_cov(new, advantages, mask, share=0.1)
    assert top.sum() == int(0.1 * mask.sum())
    assert not (top & ~mask).any()
    bounds = {"low": 0.0, "high": 5.0, **CLIP}
    some = [
        select_clip_cov(
            new, new, advantages, mask, share=0.1, **bounds, generator=make.manual_seed(3)
        )
        for _ in range(2)
    ]
    assert torch.equal(*some)
    assert some[0].sum() == int(0.1 * mask.sum())
    assert not select_kl_cov(new, advantages, torch.zeros_like(mask), share=0.1).any()
    assert not select_clip_cov(
        new, new, advantages, torch.zeros_like(mask), share=0.1, **bounds
    ).any()


# ---- rejection and value losses


def test_rejection_by_the_whole_response_takes_all_of_it_or_nothing():
    old, sampler = torch.zeros(2, 3), torch.tensor([[-0.5, 0.5, NAN], [-0.5, -0.5, -0.5]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    bounds = {"low": 0.8, "high": 1.8}
    assert kept_by_ratio(old, sampler, mask, level="token", **bounds).tolist() == [
        [True, False, False],
        [True] * 3,
    ]
    assert kept_by_ratio(old, sampler, mask, level="sequence", **bounds).tolist() == [
        [True, True, False],
        [False] * 3,
    ]
    assert kept_by_ratio(old, sampler, mask, level="geometric", **bounds).tolist() == [
        [True, True, False],
        [True] * 3,
    ]


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
    """Two bins over [−1, 1], σ = 1: Φ(0) = .5, Φ(−1) = .158655, Φ(−2) = .022750."""
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


def test_whitened_group_baselines_are_reinforce_with_baseline():
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    mask = torch.tensor([[1, 0], [1, 1], [1, 1]])
    whitened = masked_whiten(dr_grpo(rewards, mask, torch.zeros(3)).advantages, mask)
    assert float(whitened.sum()) == pytest.approx(0.0, abs=1e-6)
