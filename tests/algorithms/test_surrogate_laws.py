"""Laws and small examples of the policy losses beside PPO's clip."""

import math
from typing import Any, cast

import pytest
import torch

from telescope.algorithms import (
    adapt_penalty,
    aggregate,
    cispo_loss,
    clip_cov_loss,
    clipped_policy_loss,
    dppo_loss,
    dro_loss,
    geo_mean_loss,
    gspo_loss,
    importance_weights,
    kept_by_ratio,
    kl_cov_loss,
    kl_penalty_loss,
    sapo_loss,
    select_clip_cov,
    select_kl_cov,
    surrogate_loss,
    top_entropy,
    without_outliers,
)
from tests.algorithms.test_group_laws import NAN

CLIP = {"clip_low": 0.2, "clip_high": 0.2}

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
    assert adapt_penalty(1.0, 0.0149, target=0.01) == 1.0  # up to 1.5 times the target
    assert adapt_penalty(1.0, 0.0151, target=0.01) == 2.0
    assert adapt_penalty(1.0, 0.0067, target=0.01) == 1.0  # down to the target over 1.5
    assert adapt_penalty(1.0, 0.0066, target=0.01) == 0.5
    assert adapt_penalty(1.0, NAN, target=0.01) == 1.0


def test_covariances_choose_as_many_tokens_as_asked_from_the_mask():
    make = torch.Generator().manual_seed(0)
    new, advantages = -torch.rand(20, 10, generator=make), torch.randn(20, 10, generator=make)
    mask = torch.rand(20, 10, generator=make) > 0.3
    top = select_kl_cov(new, new, advantages, mask, cov_share=0.1)
    assert top.sum() == int(0.1 * mask.sum())
    assert not (top & ~mask).any()
    bounds = {"cov_low": 0.0, "cov_high": 5.0, **CLIP}
    some = [
        select_clip_cov(
            new, new, advantages, mask, cov_share=0.1, **bounds, generator=make.manual_seed(3)
        )
        for _ in range(2)
    ]
    assert torch.equal(*some)
    assert some[0].sum() == int(0.1 * mask.sum())
    assert not select_kl_cov(new, new, advantages, torch.zeros_like(mask), cov_share=0.1).any()
    assert not select_clip_cov(
        new, new, advantages, torch.zeros_like(mask), cov_share=0.1, **bounds
    ).any()


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


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_a_ratio_at_a_bound_is_kept(level):
    same = torch.zeros(1, 2)  # every ratio is exactly 1
    kept = kept_by_ratio(same, same, torch.ones(1, 2), level=level, low=1.0, high=1.0)
    assert kept.tolist() == [[True, True]]


ROW = torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: importance_weights(*ROW, level="word", cap=2.0), "unknown level 'word'"),
        (lambda: importance_weights(*ROW, level="token", cap=0.0), "cap must be above 0"),
        (lambda: kept_by_ratio(*ROW, level="word", low=0.5, high=2.0), "unknown level 'word'"),
        (lambda: kept_by_ratio(*ROW, level="token", low=0.0, high=2.0), "0 < low ≤ high"),
        (lambda: kept_by_ratio(*ROW, level="token", low=2.0, high=0.5), "0 < low ≤ high"),
        (lambda: kept_by_ratio(*ROW, level="token", high=0.5), "0 < low ≤ high"),
        (lambda: kept_by_ratio(*ROW, level="token_k3", low=0.1, high=1.0), "only an upper bound"),
        (lambda: kept_by_ratio(*ROW, level="seq_max_k2", high=0.0), "only an upper bound"),
        (lambda: importance_weights(*ROW, level="token", cap=2.0, low=3.0), "low ≤ cap"),
        (lambda: importance_weights(*ROW, level="token", cap=2.0, mode="drop"), "unknown mode"),
        (lambda: without_outliers(*ROW, limit=1.0), "limit must be above 1"),
        (lambda: top_entropy(*ROW[1:], share=0.0), "0 < share ≤ 1"),
        (lambda: aggregate(*ROW[1:], "prompt-mean"), "needs row_shares"),
        (lambda: sapo_loss(*ROW, ROW[2], tau_positive=0.0, tau_negative=1.0), "τ must be above 0"),
        (lambda: sapo_loss(*ROW, ROW[2], tau_positive=1.0, tau_negative=-1.0), "τ must be above 0"),
        (
            lambda: sapo_loss(
                *ROW, ROW[2], tau_positive=1.0, tau_negative=1.0, ratio_level=cast("Any", "row")
            ),
            "unknown ratio_level 'row'; use one of token, sequence",
        ),
    ],
)
def test_settings_without_a_meaning_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_cispo_counts_the_tokens_whose_ratio_it_capped() -> None:
    """Ratios 2, 1.1 and 0.5; the limits are 0.8 and 1.2."""
    new = torch.tensor([[2.0, 1.1, 0.5]]).log()
    ones = torch.ones(1, 3)
    terms = cispo_loss(new, torch.zeros(1, 3), ones, ones, **CLIP)
    assert terms.clipped.tolist() == [[True, False, True]]
