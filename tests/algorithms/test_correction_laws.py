"""Options that correct for the sampler or choose which tokens count: numbers and laws."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from telescope.algorithms import (
    aggregate,
    gspo_loss,
    importance_weights,
    kept_by_ratio,
    off_policy_mask,
    prompt_shares,
    sapo_loss,
    top_entropy,
    without_outliers,
)
from telescope.algorithms.definitions import mismatch
from telescope.algorithms.definitions.mismatch import REJECTIONS
from tests.algorithms.law_rows import HOLES, noise

NAN = float("nan")


def of_ratios(*ratios: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(old, sampler, mask) of one response with these ratios, and padding that is never read."""
    old = torch.tensor([[*ratios, NAN]], dtype=torch.float64).log()
    sampler = torch.zeros_like(old)
    sampler[0, -1] = NAN
    return old, sampler, torch.tensor([[*[1] * len(ratios), 0]])


# ---- importance weights ----


def test_a_ratio_below_the_lower_bound_counts_as_the_bound() -> None:
    weights = importance_weights(*of_ratios(0.25, 1.0, 4.0), level="token", cap=2.0, low=0.5)
    assert weights[0].tolist() == pytest.approx([0.5, 1.0, 2.0, 0.0])


def test_icepop_drops_what_is_out_of_bounds() -> None:
    given = {"cap": 2.0, "low": 0.5, "mode": "mask"}
    weights = importance_weights(*of_ratios(0.25, 0.5, 1.0, 4.0), level="token", **given)
    assert weights[0].tolist() == pytest.approx([0.0, 0.5, 1.0, 0.0, 0.0])
    whole = importance_weights(*of_ratios(0.5, 3.0), level="sequence", **given)  # 1.5
    assert whole[0].tolist() == pytest.approx([1.5, 1.5, 0.0])


# ---- rejection ----


def test_rejection_by_k2_and_k3_of_the_token() -> None:
    e = math.e
    rows = of_ratios(1.0, e, 1 / e)  # g = 0, 1, −1: k2 = 0, ½, ½; k3 = 0, e − 2, 1/e
    by_k2 = kept_by_ratio(*rows, level="token_k2", high=0.4)
    by_k3 = kept_by_ratio(*rows, level="token_k3", high=0.5)  # e − 2 = 0.72, 1/e = 0.37
    assert by_k2[0].tolist() == [True, False, False, False]
    assert by_k3[0].tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("level", "limit", "stays"),
    [
        ("seq_sum_k2", 1.1, True),
        ("seq_sum_k2", 0.9, False),
        ("seq_mean_k2", 0.4, True),
        ("seq_mean_k2", 0.3, False),
        ("seq_max_k2", 0.6, True),
        ("seq_max_k2", 0.4, False),
    ],
)
def test_rejection_by_the_sum_mean_or_maximum_over_a_response(level, limit, stays) -> None:
    rows = of_ratios(1.0, math.e, 1 / math.e)  # k2 = 0, ½, ½: sum 1, mean 1/3, maximum ½
    kept = kept_by_ratio(*rows, level=level, high=limit)
    assert kept[0].tolist() == [*[stays] * 3, False]


def test_one_outlier_token_costs_its_whole_response() -> None:
    assert without_outliers(*of_ratios(1.0, 90.0), limit=100.0)[0].tolist() == [True, True, False]
    assert not without_outliers(*of_ratios(1.0, 110.0), limit=100.0).any()
    assert not without_outliers(*of_ratios(1.0, 0.009), limit=100.0).any()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(sorted(REJECTIONS)), st.floats(1.05, 3))
def test_rejections_are_the_same_by_scalars_and_by_tensors(seed, level, high) -> None:
    old = noise(*HOLES.shape, seed=seed) * 0.4
    sampler = noise(*HOLES.shape, seed=seed + 1) * 0.4
    by_ratio = REJECTIONS[level].estimate == "k1"
    limit = high if by_ratio else high - 1
    low = {"low": 1 / high} if by_ratio else {}
    wanted = kept_by_ratio(old, sampler, HOLES, level=level, high=limit, **low)
    wanted &= without_outliers(old, sampler, HOLES, limit=3.0)
    s = SimpleNamespace(reject=level, reject_low=1 / high, reject_high=limit, reject_outlier=3.0)
    for row, on in enumerate(HOLES.bool()):
        gaps = (old - sampler)[row][on].tolist()
        assert mismatch.kept(gaps, s) == wanted[row][on].tolist()


def test_equal_probabilities_reject_nothing_and_weigh_one() -> None:
    same = noise(*HOLES.shape)
    for level, found in REJECTIONS.items():
        low = {"low": 1.0} if found.estimate == "k1" else {}
        high = 1.0 if low else 1e-9
        kept = kept_by_ratio(same, same, HOLES, level=level, high=high, **low)
        assert torch.equal(kept, HOLES.bool())
    weights = importance_weights(same, same, HOLES, level="token", cap=1.0, low=1.0, mode="mask")
    assert torch.equal(weights, HOLES.double())


# ---- which tokens count ----


def test_a_bad_token_of_a_response_that_is_far_off_policy_is_masked() -> None:
    """log π_sampler − log π is 1, 0 and 2: its mean is 1."""
    now = torch.tensor([[-2.0, -1.0, -3.0, NAN]])
    sampler = torch.tensor([[-1.0, -1.0, -1.0, NAN]])
    a = torch.tensor([[-1.0, 1.0, -1.0, -1.0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    assert off_policy_mask(now, sampler, a, mask, threshold=0.9)[0].tolist() == [
        True,
        False,
        True,
        False,
    ]
    assert not off_policy_mask(now, sampler, a, mask, threshold=1.0).any()
    assert mismatch.is_off_policy([1.0, 0.0, 2.0], -1.0, 0.9)
    assert not mismatch.is_off_policy([1.0, 0.0, 2.0], 1.0, 0.9)


def test_the_tokens_with_the_largest_entropy_are_chosen() -> None:
    entropy = torch.tensor([[0.1, 0.9, 0.5, 9.0], [0.3, 0.8, 0.2, 0.4]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    chosen = top_entropy(entropy, mask, share=0.4)  # two of five
    assert chosen.tolist() == [[False, True, False, False], [False, True, False, False]]
    assert torch.equal(top_entropy(entropy, mask, share=1.0), mask.bool())
    assert top_entropy(entropy, mask, share=0.01).sum() == 1
    assert not top_entropy(entropy, torch.zeros_like(mask), share=0.5).any()


# ---- aggregation ----


def test_every_prompt_counts_the_same_in_the_prompt_mean() -> None:
    """Prompt 0 has the losses 1, 2 and 3, prompt 1 has 6: their means are 2 and 6."""
    loss = torch.tensor([[1.0, 2.0], [3.0, 9.0], [6.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 0]])
    shares = prompt_shares(mask, torch.tensor([0, 0, 1]))
    assert float(aggregate(loss, mask, "prompt-mean", row_shares=shares)) == pytest.approx(4.0)


def test_the_prompt_mean_of_one_prompt_is_the_token_mean() -> None:
    loss = noise(*HOLES.shape)
    shares = prompt_shares(HOLES, torch.zeros(len(HOLES)))
    ours = aggregate(loss, HOLES, "prompt-mean", row_shares=shares)
    torch.testing.assert_close(ours, aggregate(loss, HOLES, "token-mean"))
    apart = prompt_shares(HOLES, torch.arange(len(HOLES)))
    ours = aggregate(loss, HOLES, "prompt-mean", row_shares=apart)
    torch.testing.assert_close(ours, aggregate(loss, HOLES, "seq-mean-token-mean"))


def test_the_prompt_mean_does_not_depend_on_how_rows_are_split() -> None:
    loss = noise(*HOLES.shape)
    shares = prompt_shares(HOLES, torch.tensor([0, 1, 0, 2, 1, 1]))
    whole = aggregate(loss, HOLES, "prompt-mean", row_shares=shares)
    parts = [
        aggregate(loss[part], HOLES[part], "prompt-mean", row_shares=shares[part])
        for part in (slice(0, 2), slice(2, 6))
    ]
    torch.testing.assert_close(whole, torch.stack(parts).sum())


# ---- the response's ratio ----

CLIP = {"clip_low": 0.2, "clip_high": 0.2}
TAU = {"tau_positive": 1.0, "tau_negative": 2.0}


def test_the_dual_clip_bounds_gspo_where_the_advantage_is_negative() -> None:
    """The response's ratio is √(2·8) = 4. Unbounded, the loss of A = −1 is 4."""
    new = torch.tensor([[2.0, 8.0]]).log()
    old, a, mask = torch.zeros(1, 2), -torch.ones(1, 2), torch.ones(1, 2)
    assert gspo_loss(new, old, a, mask, **CLIP).loss.tolist() == [pytest.approx([4, 4])]
    bounded = gspo_loss(new, old, a, mask, **CLIP, dual_clip=3.0)
    assert bounded.loss.tolist() == [pytest.approx([3, 3])]
    assert bounded.dual_clipped.tolist() == [[True, True]]
    loose = gspo_loss(new, old, a, mask, **CLIP, dual_clip=5.0)
    assert loose.loss.tolist() == [pytest.approx([4, 4])]


def test_sapo_by_sequence_gates_the_ratio_of_the_response() -> None:
    """Ratios 2 and ½: their geometric mean is 1, where the gate is (4/τ)·½."""
    new = torch.tensor([[2.0, 0.5]]).log()
    old, mask = torch.zeros(1, 2), torch.ones(1, 2)
    a = torch.tensor([[1.0, -1.0]])
    terms = sapo_loss(new, old, a, mask, **TAU, ratio_level="sequence")
    assert terms.loss.tolist() == [pytest.approx([-2.0, 1.0])]
    assert terms.ratio.tolist() == [pytest.approx([2.0, 0.5])]


def test_sapo_by_sequence_is_sapo_where_all_ratios_are_equal() -> None:
    old = noise(*HOLES.shape)
    new = (old + 0.3).requires_grad_()
    a = noise(*HOLES.shape, seed=1)
    losses = [
        sapo_loss(new, old, a, HOLES, **TAU, ratio_level=level).loss
        for level in ("token", "sequence")
    ]
    torch.testing.assert_close(*losses)
    slopes = [torch.autograd.grad(loss.sum(), new)[0] for loss in losses]
    torch.testing.assert_close(*slopes)
