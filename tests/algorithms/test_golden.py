"""verl 0.9.1 and Telescope agree on every golden case of what both compute.

At mask 1 the numbers are verl's; off the mask ours are exactly 0, where verl's hold carries and
garbage.
"""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from telescope.algorithms import (
    adapt_kl_coef,
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    entropy_from_logits,
    gae,
    importance_weights,
    kl_penalty,
    log_probs_from_logits,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from telescope.batch import TokenBatch
from telescope.config import CreditConfig
from telescope.credit import compute_advantages
from tests.algorithms.golden_cases import CASES, Case

COVERED: list[str] = []
ELSEWHERE = (
    "adv__",
    "rollout_is__",
    "rollout_rs__",
    "offpolicy_metrics__",
    "quirk__",
)  # other files, or not in the package
OTHER_FILE = ("policy__vanilla__rollout_is_weights",)  # test_golden_policies.py


def golden(family: str):
    """Parametrises a test over the cases of a family, by name."""
    names = [name for name in CASES if name.startswith(family + "__") and name not in OTHER_FILE]
    COVERED.extend(names)
    return pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name) for name in names])


def agree(
    case: Case,
    ours: dict[str, torch.Tensor],
    *,
    mask: torch.Tensor | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-7,
):
    """Every recorded output is compared: at mask 1, and with 0 off it, if a mask is given."""
    assert ours.keys() == case.out.keys()
    if "f32" in case.name:
        rtol, atol = 2e-4, 2e-5
    for name, value in ours.items():
        mine, theirs = np.asarray(torch.as_tensor(value).detach()), case.out[name]
        if mask is not None and mine.ndim:
            on = mask.bool().numpy()
            if mine.shape == on.shape:
                assert (mine[~on] == 0).all(), f"{name} is not 0 off the mask"
                mine, theirs = mine[on], theirs[on]
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol, err_msg=name)


def gradient(total: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(total, leaf)[0]


@golden("gae")
def test_gae_is_verls_before_and_after_whitening(case):
    advantages, returns = gae(
        case["token_level_rewards"], case["values"], case.mask, gamma=case["gamma"], lam=case["lam"]
    )
    whitened = masked_whiten(advantages, case.mask)
    agree(
        case,
        {"advantages_raw": advantages, "advantages_whitened": whitened, "returns": returns},
        mask=case.mask,
    )


@golden("masked_stats")
def test_masked_statistics_are_verls(case):
    values, mask = case["values"], case.mask
    ours = {
        "masked_sum": masked_sum(values, mask),
        "masked_sum_axis_last": masked_sum(values, mask, -1),
        "masked_mean": masked_mean(values, mask),
        "masked_mean_axis_last": masked_mean(values, mask, -1),
        "masked_var_biased": masked_var(values, mask, unbiased=False),
        "masked_var_unbiased": masked_var(values, mask),
        "masked_whiten_shift_mean_true": masked_whiten(values, mask),
        "masked_whiten_shift_mean_false": masked_whiten(values, mask, shift_mean=False),
    }
    if "error" in case.out:  # verl refuses to whiten fewer than two tokens; ours have no spread
        assert ours.pop("masked_var_unbiased") == 0
        assert (ours.pop("masked_whiten_shift_mean_true") == 0).all()
        assert torch.equal(
            ours.pop("masked_whiten_shift_mean_false"), values.where(mask.bool(), 0.0)
        )
        case = Case(case.name, case.inputs, {k: v for k, v in case.out.items() if k != "error"})
    # verl divides by n + 1e-8, so its mean of equal numbers is not that number; only there does it
    # show
    agree(
        case, ours, mask=mask, atol=1e-6 if case.name == "masked_stats__constant_values" else 1e-7
    )


@golden("kl_penalty")
def test_kl_estimates_and_their_gradients_are_verls(case):
    ours = {}
    for kind in ("k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"):
        log_prob = case["log_prob"].clone().requires_grad_()
        key, kl = kind.replace("+", "_plus"), kl_penalty(log_prob, case["ref_log_prob"], kind)
        ours |= {key: kl, key + "_grad": gradient(kl.sum(), log_prob)}
    if case.name == "kl_penalty__extreme":  # the one deliberate difference: the next test
        ours["k3_grad"] = torch.from_numpy(case.out["k3_grad"])
    agree(case, ours)


def test_k3s_gradient_does_not_vanish_past_the_cap_where_verls_does():
    case = CASES["kl_penalty__extreme"]
    log_prob = case["log_prob"].clone().requires_grad_()
    ours, verl = (
        gradient(kl_penalty(log_prob, case["ref_log_prob"], "k3").sum(), log_prob),
        torch.from_numpy(case.out["k3_grad"]),
    )
    d = case["log_prob"] - case["ref_log_prob"]
    freed = (verl == 0) & (d != 0)
    assert freed.any()
    torch.testing.assert_close(ours[~freed], verl[~freed], rtol=1e-6, atol=1e-7)
    assert torch.equal(
        ours[freed].sign(), d[freed].sign()
    )  # still pulled back towards the reference
    assert ours[freed].abs().min() > 0.99


@pytest.mark.parametrize(
    ("alias", "kind"),
    [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3"), ("kl+", "k1+"), ("low_var_kl+", "k3+")],
)
def test_verls_other_names_of_a_kl_kind_mean_the_same(alias, kind):
    case = CASES["kl_penalty__extreme"]
    assert torch.equal(
        *(kl_penalty(case["log_prob"], case["ref_log_prob"], k) for k in (alias, kind))
    )


@golden("agg_loss")
def test_aggregation_is_verls(case):
    loss_mat = case["loss_mat"].clone().requires_grad_()
    loss = case.ranks * aggregate(loss_mat, case.mask, case["loss_agg_mode"], **case.denominators)
    agree(case, {"loss": loss, "grad_loss_mat": gradient(loss, loss_mat)}, mask=case.mask)


@golden("value_loss")
def test_value_loss_is_verls(case):
    vpreds = case["vpreds"].clone().requires_grad_()
    terms = clipped_value_loss(
        vpreds, case["values"], case["returns"], case.mask, clip_value=case["cliprange_value"]
    )
    loss = case.ranks * aggregate(terms.loss, case.mask, case["loss_agg_mode"], **case.denominators)
    clipfrac = masked_mean(terms.clipped.double(), case.mask)
    assert not terms.loss[~case.mask.bool()].any()
    agree(
        case,
        {"vf_loss": loss, "vf_clipfrac": clipfrac, "grad_vpreds": gradient(loss, vpreds)},
        mask=case.mask,
    )


@golden("policy__vanilla")
def test_clipped_policy_loss_is_verls(case):
    log_prob = case["log_prob"].clone().requires_grad_()
    terms = clipped_policy_loss(
        log_prob,
        case["old_log_prob"],
        case["advantages"],
        case.mask,
        clip_low=case["clip_ratio_low"],
        clip_high=case["clip_ratio_high"],
        dual_clip=case["clip_ratio_c"],
    )
    loss = case.ranks * aggregate(terms.loss, case.mask, case["loss_agg_mode"], **case.denominators)
    for term in (terms.loss, terms.ratio, terms.log_ratio, terms.clipped, terms.dual_clipped):
        assert not term[~case.mask.bool()].any()
    ours = {
        "loss": loss,
        "grad_log_prob": gradient(loss, log_prob),
        "metric_pg_clipfrac": masked_mean(terms.clipped.double(), case.mask),
        "metric_pg_clipfrac_lower": masked_mean(terms.dual_clipped.double(), case.mask),
        "metric_ppo_kl": -masked_mean(terms.log_ratio, case.mask),
    }
    agree(case, ours, mask=case.mask)


@golden("kl_controller")
def test_kl_coefficient_moves_as_verls_does(case):
    from telescope.trainer import Trainer

    credit = CreditConfig.of(
        kl_target=case["target_kl"] if case["type"] == "adaptive" else None,
        kl_horizon=case["horizon"],
    )
    run = SimpleNamespace(config=SimpleNamespace(credit=credit), kl_coef=case["init_kl_coef"])
    betas = [run.kl_coef]
    for kl, n_steps in zip(case["current_kl"].tolist(), case["n_steps"].tolist(), strict=True):
        Trainer._adapt_kl(run, {"reward/kl": kl}, n_steps)
        betas.append(run.kl_coef)
    agree(case, {"beta": torch.tensor(betas, dtype=torch.float64)})


@golden("apply_kl_penalty")
def test_rewards_with_the_kl_taken_off_are_verls(case):
    mask, zeros = case.mask, torch.zeros_like(case["token_level_scores"])
    columns = {
        name: case[name]
        for name in ("response_mask", "token_level_scores", "old_log_probs", "ref_log_prob")
    }
    batch = TokenBatch({**columns, "values": zeros, "bootstrap": zeros[:, 0]})
    batch = compute_advantages(
        batch, CreditConfig.of(kl_kind=case["kl_penalty"]), kl_coef=case["init_kl_coef"]
    )
    kl = masked_mean(batch["kl"], mask, -1).mean()  # verl's metric: mean over rows of row means
    beta = adapt_kl_coef(
        case["init_kl_coef"],
        float(kl),
        target=case["target_kl"],
        horizon=case["horizon"],
        n_steps=len(batch),
    )
    ours = {
        "token_level_rewards": batch["token_level_rewards"],
        "metric_reward_kl_penalty": kl,
        "metric_reward_kl_penalty_coeff": case["init_kl_coef"],
        "new_beta": beta,
    }
    agree(case, ours, mask=mask)


@golden("logits")
def test_log_probs_and_entropy_from_logits_are_verls(case):
    logits = case["logits"].clone().requires_grad_()
    log_prob, entropy = log_probs_from_logits(logits, case["labels"]), entropy_from_logits(logits)
    ours = {
        "log_prob": log_prob,
        "grad_log_prob": gradient(log_prob.sum(), logits),
        "entropy": entropy,
        "grad_entropy": gradient(entropy.sum(), logits),
        "entropy_loss": aggregate(entropy, case.mask, case["loss_agg_mode"]),
    }
    agree(case, ours)


def test_no_golden_case_is_silently_skipped():
    assert Counter(name.split("__")[0] for name in COVERED) == {
        "gae": 45,
        "masked_stats": 11,
        "kl_penalty": 4,
        "agg_loss": 35,
        "value_loss": 34,
        "policy": 37,
        "kl_controller": 3,
        "apply_kl_penalty": 8,
        "logits": 2,
    }
    rest = (
        {name for name in CASES if not name.startswith(ELSEWHERE)} - set(COVERED) - set(OTHER_FILE)
    )
    assert {name.split("__")[1] for name in rest if name.startswith("policy__")} == {
        "bypass_mode", "cispo", "clip_cov", "dppo_kl", "dppo_tv", "dro",
        "geo_mean", "gpg", "gspo", "kl_cov", "reinforce", "sapo",
    }  # fmt: skip
    assert all(name.startswith("policy__") for name in rest)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith("rollout_is__") and name.endswith("_tis")]
)
def test_importance_weights(name: str) -> None:
    case = CASES[name]
    mask = case.mask
    old, rollout = case["old_log_prob"], case["rollout_log_prob"]
    level, cap = str(case["rollout_is"]), float(case["rollout_is_threshold"])
    weights = importance_weights(old, rollout, mask, level=level, cap=cap)
    on = mask.bool().numpy()
    np.testing.assert_allclose(
        weights.numpy()[on], case.out["weights"][on], rtol=2e-4 if "f32" in name else 1e-6
    )
    assert (weights.numpy()[~on] == 0).all()
