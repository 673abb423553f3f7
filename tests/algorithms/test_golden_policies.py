"""The policy losses beside PPO's clip agree with verl 0.9.1 on every golden case of what both
compute, in value and gradient.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from telescope.algorithms import (
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
    masked_mean,
    sapo_loss,
    select_clip_cov,
    select_kl_cov,
)
from telescope.algorithms.definitions.mismatch import REJECTIONS
from telescope.roles.correction import finish_mismatch, measure_mismatch
from telescope.roles.meter import Meter
from tests.algorithms.golden_cases import CASES, Case
from tests.fakes import hand_batch


def clip(case: Case) -> dict[str, float]:
    return {"clip_low": case["clip_ratio_low"], "clip_high": case["clip_ratio_high"]}


def dppo(case: Case, log_prob, *rest):
    return dppo_loss(
        log_prob,
        *rest,
        divergence=case["loss_name"][-2:],
        ratio_cap=case["clip_ratio_c"],
        **clip(case),
    )


def clip_cov(case: Case, log_prob, old, advantages, mask):
    selected = torch.from_numpy(case.out["selected"])
    bounds = {"cov_low": case["clip_cov_lb"], "cov_high": case["clip_cov_ub"]}
    mine = select_clip_cov(
        log_prob, old, advantages, mask, cov_share=case["clip_cov_ratio"], **bounds, **clip(case)
    )
    if case["clip_cov_ratio"] == 1:
        assert torch.equal(mine, selected)
    else:  # a random subset of the candidates: as many, out of the same ones
        candidates = select_clip_cov(
            log_prob, old, advantages, mask, cov_share=1.0, **bounds, **clip(case)
        )
        assert mine.sum() == selected.sum()
        assert not (selected & ~candidates).any()
    return clip_cov_loss(log_prob, old, advantages, mask, selected, **clip(case))


def kl_cov(case: Case, log_prob, old, advantages, mask):
    selected = select_kl_cov(log_prob, old, advantages, mask, cov_share=case["kl_cov_ratio"])
    assert torch.equal(selected, torch.from_numpy(case.out["selected"]))
    return kl_cov_loss(log_prob, old, advantages, mask, selected, beta=case["ppo_kl_coef"])


OURS = {
    "gspo": lambda case, *given: gspo_loss(*given, **clip(case)),
    "cispo": lambda case, *given: cispo_loss(*given, **clip(case)),
    "sapo": lambda case, *given: sapo_loss(
        *given, tau_positive=case["tau_pos"], tau_negative=case["tau_neg"]
    ),
    "geo_mean": lambda case, *given: geo_mean_loss(*given, **clip(case)),
    "dppo_tv": dppo,
    "dppo_kl": dppo,
    "dro": lambda case, *given: dro_loss(*given, beta=case["dro_beta"]),
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "vanilla": lambda case, *given: clipped_policy_loss(
        *given, dual_clip=case["clip_ratio_c"], **clip(case)
    ),
}
ALWAYS_BY_ROW = {
    "geo_mean",
    "sapo",
}  # verl reads loss_agg_mode and ignores it; ours take what is asked for
DIFFERS = {
    # verl takes the geometric mean of the weights; ours weigh every token's term
    "policy__geo_mean__rollout_is_weights",
    "policy__geo_mean__global_seq-mean-token-sum",  # verl ignores the global counts
    "policy__clip_cov__extreme",  # verl does not cut |log ρ| at 20 here, as it does elsewhere
    "policy__kl_cov__extreme",
    "policy__geo_mean__zero_row",  # verl divides by all rows, ours by those with a token
}
NAMES = [
    name
    for name, case in CASES.items()
    if name.startswith("policy__")
    and case["loss_name"] in OURS
    and (case["loss_name"] != "vanilla" or "rollout_is" in name)
]


def evaluated(case: Case):
    """(terms, loss, gradient), with NaN wherever the mask is 0."""
    on = case.mask.bool()
    log_prob, old, advantages = (
        case[k].masked_fill(~on, float("nan")) for k in ("log_prob", "old_log_prob", "advantages")
    )
    log_prob.requires_grad_()
    terms = OURS[case["loss_name"]](case, log_prob, old, advantages, case.mask)
    weights = case.inputs.get("rollout_is_weights", torch.ones_like(log_prob)).where(on, 0.0)
    mode = "seq-mean-token-mean" if case["loss_name"] in ALWAYS_BY_ROW else case["loss_agg_mode"]
    loss = case.ranks * aggregate(terms.loss * weights, case.mask, mode, **case.denominators)
    return terms, loss.detach(), torch.autograd.grad(loss, log_prob)[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DIFFERS])
def test_policy_losses_are_verls(name):
    case = CASES[name]
    terms, loss, gradient = evaluated(case)
    for term in vars(terms).values():
        assert not term[~case.mask.bool()].any()
    np.testing.assert_allclose(loss, case.out["loss"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(gradient, case.out["grad_log_prob"], rtol=1e-6, atol=1e-7)
    if (
        "extreme" not in name and case["loss_name"] != "kl_cov"
    ):  # verl does not cut |log ρ| at 20 everywhere; kl_cov's metric is mean |log ρ|
        np.testing.assert_allclose(
            -masked_mean(terms.log_ratio, case.mask).detach(),
            case.out["metric_ppo_kl"],
            rtol=1e-6,
            atol=1e-7,
        )


@pytest.mark.parametrize(
    "name", [name for name in NAMES if CASES[name]["loss_name"] in ("gspo", "cispo")]
)
def test_as_many_tokens_are_recorded_as_clipped_as_verl_reports(name):
    case = CASES[name]
    terms, _, _ = evaluated(case)
    clipped = masked_mean(terms.clipped.double(), case.mask)
    np.testing.assert_allclose(clipped, case.out["metric_pg_clipfrac"], atol=1e-7)


STOPPED_BY_A_CLIP = ("gspo", "geo_mean", "clip_cov", "dppo_tv", "dppo_kl", "vanilla")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if CASES[name]["loss_name"] in STOPPED_BY_A_CLIP and "extreme" not in name
    ],
)
def test_a_token_is_recorded_as_clipped_exactly_where_verl_gives_it_no_gradient(name):
    case = CASES[name]
    terms, _, _ = evaluated(case)
    acts = case.mask.bool() & (case["advantages"] != 0)
    no_gradient = torch.from_numpy(case.out["grad_log_prob"] == 0)
    recorded = terms.clipped | terms.dual_clipped
    assert torch.equal(recorded[acts], no_gradient[acts])


def test_geo_mean_takes_the_global_denominators_that_verl_ignores():
    case, plain = (
        CASES["policy__geo_mean__global_seq-mean-token-sum"],
        CASES["policy__geo_mean__zero_row"],
    )
    _, loss, _ = evaluated(case)
    np.testing.assert_allclose(
        loss, case.out["loss"] * len(case.mask) / case["global_batch_size"] * case.ranks, rtol=1e-6
    )
    rows = int(plain.mask.bool().any(1).sum())
    np.testing.assert_allclose(
        evaluated(plain)[1], plain.out["loss"] * len(plain.mask) / rows, rtol=1e-6
    )


def test_geo_mean_with_importance_weights_differs_from_verl_in_the_mean_of_the_weights_alone():
    """Ours multiplies every token's term by its own weight, in this loss as in all others: what the
    ledger records for the token.

    A response, whose terms are equal here, is so weighed by the arithmetic mean of its weights;
    verl takes their geometric mean, as of the ratios. Where a response has one weight
    (`actor.importance = "sequence"`) both are that weight, and the numbers verl's.
    """
    case = CASES["policy__geo_mean__rollout_is_weights"]
    weights = case["rollout_is_weights"]

    def weighed(row: torch.Tensor):
        return evaluated(
            replace(
                case, inputs=case.inputs | {"rollout_is_weights": row[:, None].expand_as(weights)}
            )
        )[1:]

    loss, gradient = weighed(masked_mean(weights.log(), case.mask, -1).exp())
    np.testing.assert_allclose(loss, case.out["loss"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(gradient, case.out["grad_log_prob"], rtol=1e-6, atol=1e-7)
    _, ours, own_gradient = evaluated(case)
    loss, gradient = weighed(masked_mean(weights, case.mask, -1))
    np.testing.assert_allclose(ours, loss, rtol=1e-12)
    np.testing.assert_allclose(own_gradient, gradient, rtol=1e-12, atol=1e-15)
    assert abs(float(ours) - float(case.out["loss"])) > 0.005


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_a_ratio_beyond_e20_has_no_gradient_in_any_loss(loss):
    case = CASES[f"policy__{loss}__extreme"]
    inside = (case["log_prob"] - case["old_log_prob"]).abs() < 20
    gradient = evaluated(case)[2]
    np.testing.assert_allclose(
        gradient[inside], case.out["grad_log_prob"][inside.numpy()], rtol=1e-6, atol=1e-7
    )
    assert not gradient[~inside].any()


def test_no_policy_case_is_silently_skipped():
    others = {
        case["loss_name"] for name, case in CASES.items() if name.startswith("policy__")
    } - set(OURS)
    assert others == {
        "gpg",
        "reinforce",
        "bypass_mode",
    }  # REINFORCE without a ratio: not in the package
    assert len(NAMES) == 80
    assert set(NAMES) >= DIFFERS


# ---- rejection by bounds ----

LEVELS = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
OF_RATIOS = [
    name
    for name, case in CASES.items()
    if name.startswith("rollout_rs__") and case["rollout_rs"] in LEVELS
]
OF_DIVERGENCES = [
    name
    for name, case in CASES.items()
    if name.startswith("rollout_rs__") and case["rollout_rs"] in REJECTIONS
]


def bounds(text: str) -> dict[str, float]:
    """verl's bounds test the inverse ratio π_sampler/π_old: turned over, they are ours.

    One number alone is the upper of a pair.
    """
    high, *_, low = (*text.split("_"), text)[:2] if "_" in text else (1 / float(text), text)
    return {"low": 1 / float(low), "high": 1 / float(high)}


@pytest.mark.parametrize("name", OF_DIVERGENCES)
def test_rejection_by_a_divergence_keeps_verls_tokens(name):
    case = CASES[name]
    old, rollout = (
        case[k].masked_fill(~case.mask.bool(), float("nan"))
        for k in ("old_log_prob", "rollout_log_prob")
    )
    limit = float(case["rollout_rs_threshold"])
    kept = kept_by_ratio(old, rollout, case.mask, level=case["rollout_rs"], high=limit)
    assert torch.equal(kept, torch.from_numpy(case.out["modified_response_mask"]).bool())


@pytest.mark.parametrize("name", OF_RATIOS)
def test_rejection_keeps_verls_tokens_once_its_bounds_are_turned_over(name):
    case = CASES[name]
    old, rollout = (
        case[k].masked_fill(~case.mask.bool(), float("nan"))
        for k in ("old_log_prob", "rollout_log_prob")
    )
    kept = kept_by_ratio(
        old,
        rollout,
        case.mask,
        level=LEVELS[case["rollout_rs"]],
        **bounds(case["rollout_rs_threshold"]),
    )
    assert torch.equal(kept, torch.from_numpy(case.out["modified_response_mask"]).bool())


def test_no_rejection_case_is_left_out():
    assert len(OF_RATIOS) == 8
    assert len(OF_DIVERGENCES) == 16  # token, sum, mean, max of k2 and k3, with two masks
    assert {CASES[name]["rollout_rs"] for name in OF_DIVERGENCES} == {
        name for name, found in REJECTIONS.items() if found.estimate != "k1"
    }


def test_bounds_apply_to_the_ratio_they_name():
    case = CASES["quirk__rs_token_k1_bounds_are_on_inverse_ratio"]
    ratio = (case["old_log_prob"] - case["rollout_log_prob"]).exp()[0]
    kept = kept_by_ratio(
        case["old_log_prob"], case["rollout_log_prob"], case.mask, level="token", low=0.4, high=1.1
    )[0]
    assert kept.tolist() == [0.4 <= float(r) <= 1.1 for r in ratio]
    verl = torch.from_numpy(case.out["modified_response_mask"])[0].bool()
    assert verl[
        (ratio > 1.9) & (ratio < 2.1)
    ].all()  # verl keeps a ratio of 2 and rejects one of 0.5
    assert not verl[(ratio > 0.49) & (ratio < 0.51)].any()
    assert kept[(ratio > 0.49) & (ratio < 0.51)].all()


def test_a_nan_in_padding_gets_weight_zero():
    case = CASES["quirk__rollout_is_nan_under_mask"]
    weights = importance_weights(
        case["old_log_prob"], case["rollout_log_prob"], case.mask, level="token", cap=2.0
    )
    assert np.isnan(case.out["weights"]).any()
    on = case.mask.bool()
    assert (weights[~on] == 0).all()
    np.testing.assert_allclose(weights[on], case.out["weights"][on.numpy()], rtol=1e-6)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith("rollout_is__") and name.endswith("_icepop")]
)
def test_icepop_is_a_weight_and_a_rejection_with_the_same_bounds(name):
    case = CASES[name]
    low, high = (float(x) for x in case["rollout_is_threshold"].split("_"))
    old, rollout, level = case["old_log_prob"], case["rollout_log_prob"], case["rollout_is"]
    weights = importance_weights(old, rollout, case.mask, level=level, cap=high)
    weights = weights * kept_by_ratio(old, rollout, case.mask, level=level, low=low, high=high)
    on = case.mask.bool().numpy()
    np.testing.assert_allclose(weights.numpy()[on], case.out["weights"][on], rtol=1e-6)
    masked = importance_weights(
        old, rollout, case.mask, level=level, cap=high, low=low, mode="mask"
    )
    torch.testing.assert_close(masked, weights)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("offpolicy_metrics__")])
def test_chi_squared_of_the_sampler_is_verls(name):
    """verl's χ² of responses counts a row without a token as one with ratio 1; ours does not."""
    case = CASES[name]
    rows = hand_batch(case.mask.long().tolist()).with_columns(
        rollout_log_probs=case["rollout_log_prob"].masked_fill(~case.mask.bool(), 0.0)
    )
    meter = Meter()
    measure_mismatch(case["old_log_prob"], rows, meter)
    metrics = meter.result()
    finish_mismatch(metrics)
    assert metrics["rollout/chi2_token"] == pytest.approx(
        float(case.out["metric_chi2_token"]), rel=1e-5
    )
    if case.mask.bool().any(1).all():
        assert metrics["rollout/chi2_seq"] == pytest.approx(
            float(case.out["metric_chi2_seq"]), rel=1e-5
        )


def test_geo_mean_without_a_token_is_zero():
    case = CASES["quirk__geo_mean_all_masked"]
    log_prob = case["log_prob"].clone().requires_grad_()
    loss = aggregate(
        geo_mean_loss(
            log_prob, case["old_log_prob"], case["advantages"], case.mask, **clip(case)
        ).loss,
        case.mask,
    )
    assert float(loss.detach()) == 0
    assert not torch.autograd.grad(loss, log_prob)[0].any()
