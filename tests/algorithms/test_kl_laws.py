"""Closed forms and bounds of log-probs, entropy, the KL estimates and their coefficient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from telescope.algorithms import (
    adapt_kl_coef,
    aggregate,
    entropy_from_logits,
    entropy_weight,
    kl_penalty,
    log_probs_from_logits,
)
from telescope.batch import TokenBatch
from tests.algorithms.law_rows import close, law, noise, tensor


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


@pytest.mark.parametrize(
    ("entropy", "weight"), [(0.0, 0.02), (0.1, 0.015), (0.2, 0.01), (0.4, 0.0), (3.0, 0.0)]
)
def test_the_entropy_bonus_falls_to_zero_at_its_target(entropy, weight):
    log_probs = tensor([[-entropy, -2 * entropy, 0.0, math.nan]])  # mean of the three: −entropy
    mask = torch.tensor([[1, 1, 1, 0]])
    found = entropy_weight(log_probs, mask, coef=0.02, target=0.4)
    assert found == pytest.approx(weight, abs=1e-12)


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


@pytest.mark.parametrize("d", [-2.62, -5.0, -30.0])
def test_beyond_its_cap_k3_keeps_the_slope_that_it_had_there(d):
    """At the cap e^x − x − 1 = 10, so e^x = 11 + x and the slope is 1 − e^x = −(10 + x), with x =
    2.6109.
    """
    log_prob = tensor(d).requires_grad_()
    k3 = kl_penalty(log_prob, tensor(0.0), "k3")
    assert k3.item() == 10
    assert torch.autograd.grad(k3, log_prob)[0].item() == pytest.approx(-12.6109, abs=1e-3)


def test_just_below_its_cap_k3_has_its_own_slope():
    log_prob = tensor(-2.6).requires_grad_()
    k3 = kl_penalty(log_prob, tensor(0.0), "k3")
    assert k3.item() == pytest.approx(math.exp(2.6) - 3.6)
    assert torch.autograd.grad(k3, log_prob)[0].item() == pytest.approx(1 - math.exp(2.6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_log_probs_are_rounded_once(dtype) -> None:
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)).mul(8).to(dtype)
    tokens = torch.arange(64) % 50
    exact = log_probs_from_logits(logits.double(), tokens)
    assert log_probs_from_logits(logits, tokens).tolist() == exact.to(dtype).tolist()
