"""What ours does where verl 0.9.1 breaks: one test per `quirk__*` golden case that concerns a
function of ours.

Each test first shows, from the recorded output, what is odd about verl's answer (an infinite old
log-prob is harmless in both).
"""

import math

import numpy as np
import pytest
import torch

from telescope.algorithms import (
    adapt_kl_coef,
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    gae,
    masked_whiten,
)
from telescope.batch import TokenBatch
from telescope.errors import TelescopeError
from tests.algorithms.golden_cases import CASES
from tests.algorithms.law_rows import MODES


def quirk(name: str):
    return CASES["quirk__" + name]


def zeroed(case, name: str) -> torch.Tensor:
    """The input as it is on the mask, 0 elsewhere."""
    return case[name].where(case.mask.bool(), 0.0)


def case_gae(case, rewards=None, values=None):
    rewards, values = (
        case["token_level_rewards"] if rewards is None else rewards,
        case["values"] if values is None else values,
    )
    return gae(rewards, values, case.mask, gamma=case["gamma"], lam=case["lam"])


def policy(case, **replaced):
    """(loss, gradient with respect to log_prob)."""
    given = {
        name: replaced.get(name, case[name]) for name in ("log_prob", "old_log_prob", "advantages")
    }
    log_prob = given["log_prob"].clone().requires_grad_()
    terms = clipped_policy_loss(
        log_prob,
        given["old_log_prob"],
        given["advantages"],
        case.mask,
        dual_clip=case["clip_ratio_c"],
    )
    loss = aggregate(terms.loss, case.mask, case["loss_agg_mode"])
    return loss.detach(), torch.autograd.grad(loss, log_prob)[0]


def value(case, **replaced):
    """(loss, gradient with respect to vpreds)."""
    given = {name: replaced.get(name, case[name]) for name in ("vpreds", "values", "returns")}
    vpreds = given["vpreds"].clone().requires_grad_()
    terms = clipped_value_loss(
        vpreds, given["values"], given["returns"], case.mask, clip_value=case["cliprange_value"]
    )
    loss = aggregate(terms.loss, case.mask, case["loss_agg_mode"])
    return loss.detach(), torch.autograd.grad(loss, vpreds)[0]


def test_a_nan_value_in_padding_changes_no_advantage():
    case = quirk("gae_nan_under_mask")
    assert case["values"].isnan().any()
    assert np.isnan(case.out["advantages_whitened"]).all()
    ours, clean = case_gae(case), case_gae(case, values=zeroed(case, "values"))
    for mine, wanted in zip(ours, clean, strict=True):
        assert torch.equal(mine, wanted)
    assert masked_whiten(ours[0], case.mask).isfinite().all()


def test_gae_never_reads_a_reward_off_the_mask():
    case = quirk("gae_reward_on_masked_token")
    ours, clean = case_gae(case), case_gae(case, rewards=zeroed(case, "token_level_rewards"))
    assert torch.equal(ours[0], clean[0])
    on = case.mask.bool()
    np.testing.assert_allclose(
        ours[0][on], case.out["advantages_raw"][on.numpy()], rtol=1e-6, atol=1e-7
    )


def test_a_batch_refuses_a_score_off_the_mask_instead_of_dropping_it():
    case = quirk("gae_reward_on_masked_token")
    batch = TokenBatch({"response_mask": case.mask})
    with pytest.raises(TelescopeError, match=r"row 1: a score of 1 on token 11\b.*mask 1"):
        batch.with_columns(token_level_scores=case["token_level_rewards"])


def test_a_batch_with_one_action_token_whitens_to_zero_instead_of_raising():
    case = quirk("gae_one_valid_token")
    assert "ValueError" in case.out["error"].item()
    advantages, returns = case_gae(case)
    on = case.mask.bool()
    assert on.sum() == 1
    assert torch.equal(returns[on], case["token_level_rewards"][on])  # one token: δ + V = r
    assert torch.equal(masked_whiten(advantages, case.mask), torch.zeros_like(advantages))


def test_gae_takes_a_bool_mask_instead_of_raising():
    case = quirk("gae_bool_mask")
    assert case.mask.dtype is torch.bool
    assert "RuntimeError" in case.out["error"].item()
    for mine, wanted in zip(
        case_gae(case),
        gae(case["token_level_rewards"], case["values"], case.mask.double(), gamma=1.0, lam=1.0),
        strict=True,
    ):
        assert torch.equal(mine, wanted)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
def test_a_nan_advantage_in_padding_reaches_neither_policy_loss_nor_gradient(mode):
    case = quirk(f"vanilla_nan_adv_under_mask_{mode}")
    assert np.isnan(case.out["grad_log_prob"]).any() or np.isnan(case.out["loss"])
    ours, clean = policy(case), policy(case, advantages=zeroed(case, "advantages"))
    assert torch.equal(ours[0], clean[0])
    assert torch.equal(ours[1], clean[1])
    if mode == "token-mean":
        np.testing.assert_allclose(ours[0], case.out["loss"], rtol=1e-6, atol=1e-7)


def test_an_infinite_old_log_prob_in_padding_reaches_neither_policy_loss_nor_gradient():
    case = quirk("vanilla_inf_old_logprob_under_mask_token-mean")
    assert case["old_log_prob"].isinf().any()
    loss, grad = policy(case)
    np.testing.assert_allclose(loss, case.out["loss"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(grad, case.out["grad_log_prob"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_a_micro_batch_without_action_tokens_has_loss_zero_and_gradient_zero(mode):
    case = quirk(f"vanilla_all_masked_{mode}")
    assert not case.mask.any()
    assert np.isnan(case.out["loss"]) or mode == "token-sum"
    loss, grad = policy(case)
    assert loss == 0
    assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("nan_under_mask_token-mean", "vpreds"),
        ("nan_under_mask_seq-mean-token-mean", "vpreds"),
        ("nan_return_under_mask_token-mean", "returns"),
    ],
)
def test_a_nan_in_padding_reaches_neither_value_loss_nor_gradient(name, column):
    case = quirk(f"value_loss_{name}")
    assert case[column].isnan().any()
    assert np.isnan(case.out["grad_vpreds"]).any() or np.isnan(case.out["vf_loss"])
    ours, clean = value(case), value(case, **{column: zeroed(case, column)})
    assert torch.equal(ours[0], clean[0])
    assert torch.equal(ours[1], clean[1])
    assert ours[0].isfinite()
    assert ours[1].isfinite().all()


def betas(case) -> list[float]:
    path = [case["init_kl_coef"]]
    for kl, n_steps in zip(case["current_kl"].tolist(), case["n_steps"].tolist(), strict=True):
        path.append(
            adapt_kl_coef(
                path[-1], kl, target=case["target_kl"], horizon=case["horizon"], n_steps=n_steps
            )
        )
    return path


def test_a_batch_larger_than_the_horizon_moves_beta_by_a_fifth_and_never_below_zero():
    case = quirk("adaptive_kl_negative_beta")
    assert case.out["beta"].min() < 0
    assert betas(case) == pytest.approx(
        [0.1, 0.08, 0.064, 0.0768]
    )  # 64 samples on a horizon of 10 count as 10


def test_a_nan_kl_leaves_beta_where_it_was():
    case = quirk("adaptive_kl_nan")
    assert math.isnan(case.out["beta"][-1])
    assert betas(case) == pytest.approx([0.1, 0.09872, 0.09872, 0.09872 * 1.0128])


def test_every_quirk_of_a_function_of_ours_has_its_test():
    groups, corrections = (
        4 + 1 + 3 + 1 + 2,
        2,
        # test_golden_groups.py: grpo, opo, groups of one, gdpo, token baselines;
        # test_golden_policies.py
    )
    here = 4 + 3 + 5 + 3 + 2  # gae, policy with garbage, policy without tokens, value, β
    ours = {name for name in CASES if name.startswith("quirk__")}
    ours -= {"quirk__vanilla_clip_ratio_alone_is_ignored"}  # no such option
    assert len(ours) == here + groups + corrections + 1  # and geo_mean without a token
