from __future__ import annotations

import pytest
import torch

from telescope.config import CreditConfig
from telescope.credit import ESTIMATORS, compute_advantages, credit_metrics
from tests.fakes import hand_batch


def staged(mask, *, scores, values, old=None, ref=None, bootstrap=None, **kwargs):
    """A batch after stage 2, from numbers."""
    old = old if old is not None else [[0.0] * len(mask[0])] * len(mask)
    ref = ref if ref is not None else old
    return hand_batch(mask, **kwargs).with_columns(
        token_level_scores=torch.tensor(scores),
        values=torch.tensor(values),
        old_log_probs=torch.tensor(old),
        ref_log_prob=torch.tensor(ref),
        bootstrap=torch.tensor(bootstrap if bootstrap is not None else [0.0] * len(mask)),
    )


THREE = {"mask": [[1, 1, 1]], "scores": [[0.0, 0.0, 1.0]], "values": [[0.3, 0.4, 0.6]]}


def test_the_three_token_example() -> None:
    batch = compute_advantages(staged(**THREE), CreditConfig(gamma=1, lam=0.95), kl_coef=0.0)
    assert batch["deltas"][0].tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert batch["advantages"][0].tolist() == pytest.approx([0.651, 0.58, 0.4])
    assert batch["returns"][0].tolist() == pytest.approx([0.951, 0.98, 1.0])
    assert batch["whitened"][0].tolist() == pytest.approx([0.8295688, 0.2808168, -1.1103856], abs=1e-5)


def test_rewards_are_scores_minus_beta_kl() -> None:
    batch = staged([[1, 1]], scores=[[0.0, 1.0]], values=[[0.0, 0.0]], old=[[-0.1, -0.5]], ref=[[-0.3, -0.4]])
    shaped = compute_advantages(batch, CreditConfig(), kl_coef=0.1)
    assert shaped["kl"][0].tolist() == pytest.approx([0.2, -0.1])
    assert shaped["token_level_rewards"][0].tolist() == pytest.approx([-0.02, 1.01])


def test_without_kl_in_the_reward_the_rewards_are_the_scores() -> None:
    batch = staged([[1, 1]], scores=[[0.0, 1.0]], values=[[0.0, 0.0]], old=[[-0.1, -0.5]], ref=[[-0.3, -0.4]])
    shaped = compute_advantages(batch, CreditConfig(), kl_coef=0.0)
    assert torch.equal(shaped["token_level_rewards"], shaped["token_level_scores"])


def test_returns_use_raw_advantages_whether_whitened_or_not() -> None:
    white, raw = (compute_advantages(staged(**THREE), CreditConfig(whiten=w), kl_coef=0.0) for w in (True, False))
    assert torch.equal(white["returns"], raw["returns"])
    assert torch.equal(white["returns"], white["advantages"] + white["values"])
    assert torch.equal(raw["whitened"], raw["advantages"])


def test_a_truncated_response_bootstraps_with_the_value_of_its_last_state() -> None:
    batch = staged([[1, 1]], scores=[[0.0, 0.0]], values=[[0.5, 0.5]], bootstrap=[0.8])
    out = compute_advantages(batch, CreditConfig(gamma=0.5, lam=1.0), kl_coef=0.0)
    assert out["deltas"][0].tolist() == pytest.approx([0.0 + 0.5 * 0.5 - 0.5, 0.0 + 0.5 * 0.8 - 0.5])


def test_tool_tokens_take_no_time_step_and_trailing_ones_do_not_move_the_end() -> None:
    plain = compute_advantages(staged(**THREE), CreditConfig(gamma=0.9, lam=0.8), kl_coef=0.0)
    mask = [[1, 0, 0, 1, 1, 0]]
    holed = staged(mask, scores=[[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]], values=[[0.3, 9.0, 9.0, 0.4, 0.6, 9.0]], attended=[[1, 1, 1, 1, 1, 1]])
    out = compute_advantages(holed, CreditConfig(gamma=0.9, lam=0.8), kl_coef=0.0)
    assert out["advantages"][0, [0, 3, 4]].tolist() == pytest.approx(plain["advantages"][0].tolist())
    assert out["advantages"][0, [1, 2, 5]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize(
    "case",
    [
        {"mask": [[1]], "scores": [[1.0]], "values": [[0.2]]},
        {"mask": [[0, 0], [1, 1]], "scores": [[0.0, 0.0], [0.0, 1.0]], "values": [[0.0, 0.0], [0.1, 0.2]]},
        {"mask": [[0, 0]], "scores": [[0.0, 0.0]], "values": [[0.0, 0.0]]},
        {"mask": [[1, 1], [1, 1]], "scores": [[0.0, 0.5], [0.0, 0.5]], "values": [[0.0, 0.0], [0.0, 0.0]]},
    ],
    ids=["one token", "an empty response", "nothing at all", "all rewards equal"],
)
def test_degenerate_batches_give_finite_credit(case, estimator: str) -> None:
    batch = compute_advantages(staged(**case), CreditConfig(estimator=estimator), kl_coef=0.1)
    for name in ("advantages", "returns", "whitened", "deltas"):
        assert batch[name].isfinite().all()
        assert (batch[name][~batch.mask] == 0).all()
    metrics = credit_metrics(batch.with_columns(rollout_log_probs=batch["old_log_probs"]).with_info(score=[0.0] * len(batch)))
    assert all(value == value for value in metrics.values())


def test_monte_carlo_is_lambda_one_and_td0_is_lambda_zero() -> None:
    for estimator, lam in (("monte_carlo", 1.0), ("td0", 0.0)):
        direct = compute_advantages(staged(**THREE), CreditConfig(estimator=estimator, gamma=0.9), kl_coef=0.0)
        by_gae = compute_advantages(staged(**THREE), CreditConfig(gamma=0.9, lam=lam), kl_coef=0.0)
        assert torch.allclose(direct["advantages"], by_gae["advantages"])
        assert torch.allclose(direct["returns"], by_gae["returns"])


def test_metrics_are_means_over_tokens_not_over_rows() -> None:
    batch = staged([[1, 1, 1], [1, 0, 0]], scores=[[0.0] * 3] * 2, values=[[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]])
    out = compute_advantages(batch, CreditConfig(), kl_coef=0.0)
    metrics = credit_metrics(out.with_columns(rollout_log_probs=out["old_log_probs"]).with_info(score=[0.0, 1.0]))
    assert metrics["critic/value_mean"] == pytest.approx((1 + 1 + 1 + 5) / 4)
    assert metrics["reward/score_mean"] == 0.5
    assert metrics["response/length_mean"] == 2.0


def test_a_perfect_critic_explains_all_variance_and_a_constant_one_none() -> None:
    def explained(values):
        batch = staged([[1], [1]], scores=[[1.0], [0.0]], values=values)
        out = compute_advantages(batch, CreditConfig(), kl_coef=0.0).with_columns(rollout_log_probs=batch["old_log_probs"])
        return credit_metrics(out.with_info(score=[1.0, 0.0]))["critic/explained_variance"]

    assert explained([[1.0], [0.0]]) == pytest.approx(1.0)
    assert explained([[0.5], [0.5]]) == pytest.approx(0.0)
