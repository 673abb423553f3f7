"""Estimators without a critic agree with verl 0.9.1 on every golden case of what both compute,
before whitening; one test per quirk.

Our returns are those of the raw advantages: verl's hold the whitened ones for REINFORCE++ with
baseline and GDPO.
"""

from collections import Counter

import numpy as np
import pytest
import torch

from telescope.algorithms import (
    dr_grpo,
    gdpo,
    grpo,
    grpo_passk,
    masked_sum,
    masked_whiten,
    monte_carlo_returns,
    opo,
    optimal_token_baseline,
    remax,
    rloo,
)
from telescope.algorithms.groups import Groups
from tests.algorithms.golden_cases import CASES, Case

DIFFERS = {
    "adv__optimal_token_baseline__holes"
}  # verl's tir_ variant counts time in actions, and so do we


def group(case: Case) -> torch.Tensor:
    index = case["index"]
    return (
        index
        if torch.is_tensor(index)
        else torch.tensor([sorted(set(index)).index(name) for name in index])
    )


def by_std(case: Case, with_std, without):
    return with_std if case["norm_adv_by_std_in_grpo"] else without


def passk(case: Case, rewards: torch.Tensor):
    credit = grpo_passk(rewards, case.mask, group(case))
    raw = credit.advantages * credit.scale[:, None]
    return (
        credit if case["norm_adv_by_std_in_grpo"] else credit._replace(advantages=raw, returns=raw)
    )


def parts(case: Case, rewards: torch.Tensor):
    given = case.inputs.get(
        "component_rewards", masked_sum(rewards, case.mask, -1)[:, None]
    ).double()
    weights = case.inputs.get("component_weights", torch.ones(given.shape[1]))
    return gdpo(given, weights, case.mask, group(case))


def token_baseline(case: Case, rewards: torch.Tensor):
    weights = case.inputs.get("rollout_is_weights")
    return optimal_token_baseline(
        rewards,
        case["old_log_probs"],
        case["sum_pi_squared"],
        case.mask,
        group(case),
        weights=weights,
    )


def to_go(case: Case, rewards: torch.Tensor):
    return (monte_carlo_returns(rewards, case.mask, gamma=case["gamma"]),) * 2


OURS = {
    "grpo": lambda case, r: by_std(case, grpo, dr_grpo)(r, case.mask, group(case)),
    "grpo_vectorized": lambda case, r: by_std(case, grpo, dr_grpo)(r, case.mask, group(case)),
    "grpo_passk": passk,
    "rloo": lambda case, r: rloo(r, case.mask, group(case)),
    "rloo_vectorized": lambda case, r: rloo(r, case.mask, group(case)),
    "opo": lambda case, r: opo(r, case.mask, group(case)),
    "reinforce_plus_plus": to_go,
    "reinforce_plus_plus_baseline": lambda case, r: dr_grpo(r, case.mask, group(case)),
    "remax": lambda case, r: remax(r, case["reward_baselines"], case.mask),
    "gdpo": parts,
    "optimal_token_baseline": token_baseline,
    "tir_optimal_token_baseline": token_baseline,
}
COVERED = [
    name
    for name, case in CASES.items()
    if name.startswith("adv__") and case["estimator"] in OURS and name not in DIFFERS
]


@pytest.mark.parametrize("name", COVERED)
def test_estimators_without_a_critic_are_verls(name):
    case = CASES[name]
    rewards, on = case["token_level_rewards"].clone(), case.mask.bool()
    rewards[~on] = float("nan")  # what stands in padding is never read
    advantages, returns = OURS[case["estimator"]](case, rewards)[:2]
    assert (advantages[~on] == 0).all()
    assert (returns[~on] == 0).all()
    loose = "f32" in name or case["estimator"] in (
        "grpo_vectorized",
        "gdpo",
    )  # where verl computes in float32
    tolerance = {"rtol": 2e-4, "atol": 2e-5} if loose else {"rtol": 1e-6, "atol": 1e-7}
    keep, alone = on, "no_zero_tail" in name or case["estimator"] == "rloo_vectorized"
    if alone:  # nothing to compare with: our baseline is 0, verl's the response itself
        keep = on & (compared(case) > 1)
    theirs = case.out.get("advantages_unwhitened", case.out["advantages"])
    np.testing.assert_allclose(advantages[keep], theirs[keep], **tolerance)
    if "advantages_unwhitened" in case.out:
        np.testing.assert_allclose(
            masked_whiten(advantages, case.mask)[on], case.out["advantages"][on], **tolerance
        )
    if case["estimator"] not in ("reinforce_plus_plus_baseline", "gdpo"):
        np.testing.assert_allclose(returns[keep], case.out["returns"][keep], **tolerance)


def compared(case: Case) -> torch.Tensor:
    """How many responses of its group each token stands beside, itself included."""
    by_group = Groups(group(case))
    if case["estimator"] == "rloo_vectorized":
        return by_group.size[:, None].expand(case.mask.shape)
    nth = case.mask.long().cumsum(1) * case.mask.long()  # these cases have no holes
    return by_group.sum((nth > 0).double())


def test_no_estimator_case_is_silently_skipped():
    assert len(COVERED) == 105 - 8 - 1  # all but gpg's 8 and the one that differs
    rest = {name for name in CASES if name.startswith("adv__")} - set(COVERED)
    assert Counter(CASES[name]["estimator"] for name in rest) == {
        "gpg": 8,
        "optimal_token_baseline": 1,
    }


# ---- what ours does where verl breaks ----


def quirk(name: str) -> Case:
    return CASES["quirk__" + name]


def ours(case: Case):
    return OURS[case["estimator"]](case, case["token_level_rewards"]).advantages


@pytest.mark.parametrize("name", ["grpo_equal_rewards_f32", "grpo_vectorized_equal_rewards_f32"])
def test_equal_outcomes_get_exactly_no_advantage(name):
    case = quirk(name)
    assert abs(case.out["advantages"]).max() > 0.05
    assert (ours(case) == 0).all()


def test_a_group_of_equal_outcomes_gets_exactly_no_advantage_beside_others():
    case = quirk("grpo_vectorized_equal_rewards_group")
    by_group, outcome = Groups(group(case)), case["token_level_rewards"].sum(-1)
    equal = (by_group.std(outcome) == 0) & ~by_group.alone
    assert equal.any()
    assert abs(case.out["advantages"][equal.numpy()]).max() > 0
    assert (ours(case)[equal] == 0).all()


def test_a_reward_on_a_masked_token_is_not_part_of_the_outcome():
    case = quirk("grpo_reward_on_masked_token")
    rewards = case["token_level_rewards"]
    assert (rewards[~case.mask.bool()] != 0).any()
    clean = dr_grpo(rewards.where(case.mask.bool(), 0.0), case.mask, group(case)).advantages
    assert torch.equal(ours(case), clean)
    assert not np.allclose(clean, case.out["advantages"])


def test_a_group_without_a_token_has_advantage_zero_instead_of_nan():
    case = quirk("opo_fully_masked_group")
    assert np.isnan(case.out["advantages"]).any()
    assert ours(case).isfinite().all()
    some = case.mask.bool().any(1)
    np.testing.assert_allclose(
        ours(case)[some], case.out["advantages"][some.numpy()], rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize(
    "name", ["rloo_singletons", "rloo_vectorized_singletons", "grpo_passk_singleton"]
)
def test_a_group_of_one_is_compared_with_zero_by_every_estimator(name):
    """verl: the reward itself, 0, or an exception, depending on the variant.

    The trainer refuses rollout.n = 1 for them all.
    """
    case = quirk(name)
    rewards, mask = case["token_level_rewards"], case.mask
    alone = torch.arange(len(rewards))
    outcome = (
        rewards.where(mask.bool(), 0.0)
        .sum(-1, keepdim=True)
        .expand_as(rewards)
        .where(mask.bool(), 0.0)
    )
    for estimator in (rloo, opo, dr_grpo):
        torch.testing.assert_close(estimator(rewards, mask, alone).advantages, outcome)
    for estimator in (grpo, grpo_passk):
        torch.testing.assert_close(estimator(rewards, mask, alone).advantages, outcome / (1 + 1e-6))


def test_an_empty_responses_parts_count_in_the_group_but_are_written_nowhere():
    case = quirk("gdpo_empty_response")
    empty = ~case.mask.bool().any(1)
    assert empty.any()
    advantages = ours(case)
    assert (advantages[empty] == 0).all()
    on = case.mask.bool()
    np.testing.assert_allclose(
        advantages[on], case.out["advantages_unwhitened"][on.numpy()], rtol=2e-4, atol=2e-5
    )


def test_token_baselines_count_time_in_actions_where_tools_wrote_tokens():
    holes, right = (
        quirk("optimal_token_baseline_zero_tail_with_holes"),
        quirk("tir_optimal_token_baseline_zero_tail_with_holes"),
    )
    on = holes.mask.bool()
    np.testing.assert_allclose(
        ours(holes)[on], right.out["advantages"][on.numpy()], rtol=1e-6, atol=1e-7
    )
    assert not np.allclose(ours(holes)[on], holes.out["advantages"][on.numpy()])
