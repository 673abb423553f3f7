from __future__ import annotations

import pytest
import torch

from telescope.algorithms import ESTIMATORS
from telescope.batch import Scores, TokenBatch
from telescope.config import CreditConfig
from telescope.credit import compute_advantages, credit_metrics
from telescope.errors import TelescopeError
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


def asked(batch, *, greedy=0.5):
    """With everything that any estimator asks for."""
    given = {
        "sum_pi_squared": batch.mask * 0.3,
        "attention": batch.mask * 2.0,
        "greedy_score": torch.full((len(batch),), greedy),
    }
    weights = {"a": 0.5, "b": 0.5}
    scores = [Scores(0.0, {"a": float(i), "b": 0.5}, weights) for i in range(len(batch))]
    return batch.with_columns(**given).with_info(scores=scores)


THREE = {"mask": [[1, 1, 1]], "scores": [[0.0, 0.0, 1.0]], "values": [[0.3, 0.4, 0.6]]}


def test_the_three_token_example() -> None:
    batch = compute_advantages(staged(**THREE), CreditConfig.of(gamma=1, lam=0.95), kl_coef=0.0)
    assert batch["deltas"][0].tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert batch["advantages"][0].tolist() == pytest.approx([0.651, 0.58, 0.4])
    assert batch["returns"][0].tolist() == pytest.approx([0.951, 0.98, 1.0])
    assert batch["whitened"][0].tolist() == pytest.approx(
        [0.8295688, 0.2808168, -1.1103856], abs=1e-5
    )


def test_rewards_are_scores_minus_beta_kl() -> None:
    batch = staged(
        [[1, 1]], scores=[[0.0, 1.0]], values=[[0.0, 0.0]], old=[[-0.1, -0.5]], ref=[[-0.3, -0.4]]
    )
    shaped = compute_advantages(batch, CreditConfig.of(), kl_coef=0.1)
    assert shaped["kl"][0].tolist() == pytest.approx([0.2, -0.1])
    assert shaped["token_level_rewards"][0].tolist() == pytest.approx([-0.02, 1.01])


def test_without_the_reference_the_credit_is_the_same_and_there_is_no_kl() -> None:
    given = staged(**THREE)
    without = TokenBatch({name: given[name] for name in given if name != "ref_log_prob"})
    out = compute_advantages(without, CreditConfig.of(gamma=1, lam=0.95), kl_coef=0.0)
    assert out["token_level_rewards"][0].tolist() == [0.0, 0.0, 1.0]
    assert out["advantages"][0].tolist() == pytest.approx([0.651, 0.58, 0.4])
    assert "kl" not in out
    metrics = credit_metrics(out.with_info(scores=[Scores(1.0, {}, {})]), CreditConfig.of())
    assert "reward/kl" not in metrics
    assert metrics["reward/token_reward_mean"] == pytest.approx(1 / 3)
    with pytest.raises(TelescopeError, match="batch has no `ref_log_prob`"):
        compute_advantages(without, CreditConfig.of(), kl_coef=0.1)


def test_without_kl_in_the_reward_the_rewards_are_the_scores() -> None:
    batch = staged(
        [[1, 1]], scores=[[0.0, 1.0]], values=[[0.0, 0.0]], old=[[-0.1, -0.5]], ref=[[-0.3, -0.4]]
    )
    shaped = compute_advantages(batch, CreditConfig.of(), kl_coef=0.0)
    assert torch.equal(shaped["token_level_rewards"], shaped["token_level_scores"])


def test_returns_use_raw_advantages_whether_whitened_or_not() -> None:
    white, raw = (
        compute_advantages(staged(**THREE), CreditConfig.of(whiten=w), kl_coef=0.0)
        for w in (True, False)
    )
    assert torch.equal(white["returns"], raw["returns"])
    assert torch.equal(white["returns"], white["advantages"] + white["values"])
    assert torch.equal(raw["whitened"], raw["advantages"])


def test_a_truncated_response_bootstraps_with_the_value_of_its_last_state() -> None:
    batch = staged([[1, 1]], scores=[[0.0, 0.0]], values=[[0.5, 0.5]], bootstrap=[0.8])
    out = compute_advantages(batch, CreditConfig.of(gamma=0.5, lam=1.0), kl_coef=0.0)
    assert out["deltas"][0].tolist() == pytest.approx(
        [0.0 + 0.5 * 0.5 - 0.5, 0.0 + 0.5 * 0.8 - 0.5]
    )


def test_tool_tokens_take_no_time_step_and_trailing_ones_do_not_move_the_end() -> None:
    plain = compute_advantages(staged(**THREE), CreditConfig.of(gamma=0.9, lam=0.8), kl_coef=0.0)
    mask = [[1, 0, 0, 1, 1, 0]]
    holed = staged(
        mask,
        scores=[[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]],
        values=[[0.3, 9.0, 9.0, 0.4, 0.6, 9.0]],
        attended=[[1, 1, 1, 1, 1, 1]],
    )
    out = compute_advantages(holed, CreditConfig.of(gamma=0.9, lam=0.8), kl_coef=0.0)
    assert out["advantages"][0, [0, 3, 4]].tolist() == pytest.approx(
        plain["advantages"][0].tolist()
    )
    assert out["advantages"][0, [1, 2, 5]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize(
    "case",
    [
        {"mask": [[1]], "scores": [[1.0]], "values": [[0.2]]},
        {
            "mask": [[0, 0], [1, 1]],
            "scores": [[0.0, 0.0], [0.0, 1.0]],
            "values": [[0.0, 0.0], [0.1, 0.2]],
        },
        {"mask": [[0, 0]], "scores": [[0.0, 0.0]], "values": [[0.0, 0.0]]},
        {
            "mask": [[1, 1], [1, 1]],
            "scores": [[0.0, 0.5], [0.0, 0.5]],
            "values": [[0.0, 0.0], [0.0, 0.0]],
        },
    ],
    ids=["one token", "an empty response", "nothing at all", "all rewards equal"],
)
def test_degenerate_batches_give_finite_credit(case, estimator: str) -> None:
    batch = compute_advantages(
        asked(staged(**case)), CreditConfig.of(estimator=estimator), kl_coef=0.1
    )
    for name in ("advantages", "returns", "whitened", "deltas"):
        assert batch[name].isfinite().all()
        assert (batch[name][~batch.mask] == 0).all()
    batch = batch.with_columns(rollout_log_probs=batch["old_log_probs"])
    batch = batch.with_info(scores=[Scores(0.0)] * len(batch))
    metrics = credit_metrics(batch, CreditConfig.of(estimator=estimator))
    assert all(value == value for value in metrics.values())


def test_monte_carlo_is_lambda_one_and_td0_is_lambda_zero() -> None:
    for estimator, lam in (("monte_carlo", 1.0), ("td0", 0.0)):
        direct = compute_advantages(
            staged(**THREE), CreditConfig.of(estimator=estimator, gamma=0.9), kl_coef=0.0
        )
        by_gae = compute_advantages(
            staged(**THREE), CreditConfig.of(gamma=0.9, lam=lam), kl_coef=0.0
        )
        assert torch.allclose(direct["advantages"], by_gae["advantages"])
        assert torch.allclose(direct["returns"], by_gae["returns"])


def test_metrics_are_means_over_tokens_not_over_rows() -> None:
    batch = staged(
        [[1, 1, 1], [1, 0, 0]], scores=[[0.0] * 3] * 2, values=[[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]]
    )
    out = compute_advantages(batch, CreditConfig.of(), kl_coef=0.0)
    out = out.with_columns(rollout_log_probs=out["old_log_probs"])
    metrics = credit_metrics(out.with_info(scores=[Scores(0.0), Scores(1.0)]), CreditConfig.of())
    assert metrics["critic/value_mean"] == pytest.approx((1 + 1 + 1 + 5) / 4)
    assert metrics["reward/score_mean"] == 0.5
    assert metrics["response/length_mean"] == 2.0


def test_a_perfect_critic_explains_all_variance_and_a_constant_one_none() -> None:
    def explained(values):
        batch = staged([[1], [1]], scores=[[1.0], [0.0]], values=values)
        out = compute_advantages(batch, CreditConfig.of(), kl_coef=0.0).with_columns(
            rollout_log_probs=batch["old_log_probs"]
        )
        out = out.with_info(scores=[Scores(1.0), Scores(0.0)])
        return credit_metrics(out, CreditConfig.of())["critic/explained_variance"]

    assert explained([[1.0], [0.0]]) == pytest.approx(1.0)
    assert explained([[0.5], [0.5]]) == pytest.approx(0.0)


@pytest.mark.parametrize(("values", "expected"), [([[1.0], [1.0]], 1.0), ([[1.0], [0.5]], 0.0)])
def test_equal_returns_are_explained_only_by_a_critic_that_is_equally_wrong(
    values, expected
) -> None:
    batch = staged([[1], [1]], scores=[[1.0], [1.0]], values=values)
    out = compute_advantages(batch, CreditConfig.of(lam=1.0), kl_coef=0.0)
    metrics = credit_metrics(out.with_info(scores=[Scores(1.0)] * 2), CreditConfig.of())
    assert metrics["critic/explained_variance"] == expected


GROUPS = {
    "mask": [[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]],
    "scores": [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.25]],
    "values": [[0.0] * 3] * 4,
}


def test_flat_groups_are_counted_and_a_run_without_a_critic_has_no_critic_metrics() -> None:
    """Prompt 7 scored 1 and 0, prompt 3 twice 0.25."""
    grpo = CreditConfig.of(estimator="grpo")
    out = compute_advantages(grouped(), grpo, kl_coef=0.0)
    out = out.with_info(scores=[Scores(1.0), Scores(0.0), Scores(0.25), Scores(0.25)])
    metrics = credit_metrics(out, grpo)
    assert metrics["reward/flat_groups"] == 0.5
    assert [name for name in metrics if name.startswith("critic/")] == []
    alone = out.with_columns(group=torch.tensor([1, 2, 3, 4]))
    assert "reward/flat_groups" not in credit_metrics(alone, grpo)


def grouped(*, group=(7, 7, 3, 3), **changes):
    return asked(staged(**{**GROUPS, **changes})).with_columns(group=torch.tensor(group))


def advantages_of(batch, estimator: str, **settings) -> list[list[float]]:
    out = compute_advantages(batch, CreditConfig.of(estimator=estimator, **settings), kl_coef=0.0)
    assert (out["advantages"][~out.mask] == 0).all()
    return out["advantages"].tolist()


@pytest.mark.parametrize(
    ("estimator", "rows"),
    [
        (
            "grpo",
            [0.5 / 0.5**0.5, -0.5 / 0.5**0.5, 0.125 / (0.03125**0.5), -0.125 / (0.03125**0.5)],
        ),
        ("dr_grpo", [0.5, -0.5, 0.125, -0.125]),
        ("reinforce++_baseline", [0.5, -0.5, 0.125, -0.125]),
        ("rloo", [1.0, -1.0, 0.25, -0.25]),
        (
            "opo",
            [1 - 0.4, -0.4, 0.5 - 1.25 / 4, 0.25 - 1.25 / 4],
        ),  # (2·1 + 3·0)/5, (1·.5 + 3·.25)/4
        ("grpo_passk", [1 / 0.5**0.5, 0.0, 0.25 / (0.03125**0.5), 0.0]),
        ("reinforce++", [1.0, 0.0, 0.5, 0.25]),
        ("remax", [0.5, -0.5, 0.0, -0.25]),
    ],
)
def test_outcomes_are_compared_within_their_group(estimator: str, rows: list[float]) -> None:
    for row, wanted, mask in zip(
        advantages_of(grouped(), estimator), rows, GROUPS["mask"], strict=True
    ):
        assert row == pytest.approx([wanted * m for m in mask], rel=1e-4)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_neither_the_rows_order_nor_padding_matters(estimator: str) -> None:
    order = torch.tensor([2, 0, 3, 1])
    plain = compute_advantages(grouped(), CreditConfig.of(estimator=estimator), kl_coef=0.0)
    shuffled = compute_advantages(
        grouped().rows(order), CreditConfig.of(estimator=estimator), kl_coef=0.0
    )
    assert torch.allclose(shuffled["advantages"], plain["advantages"][order], atol=1e-6)
    wide = {
        name: [[*row, float("nan") if name != "mask" else 0] for row in rows]
        for name, rows in GROUPS.items()
    }
    padded = compute_advantages(grouped(**wide), CreditConfig.of(estimator=estimator), kl_coef=0.0)
    assert torch.allclose(padded["advantages"][:, :3], plain["advantages"], atol=1e-6)
    assert (padded["advantages"][:, 3] == 0).all()


def test_the_outcome_is_spread_over_the_tokens_by_their_weights() -> None:
    batch = grouped().with_columns(
        attention=torch.tensor([[1.0, 3.0, 0.0], [1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
    )
    assert advantages_of(batch, "uniform")[3] == pytest.approx([0.25 / 3] * 3)
    assert advantages_of(batch, "last_token")[0] == [0.0, 1.0, 0.0]
    assert advantages_of(batch, "last_token", last_k=2)[3] == [0.0, 0.125, 0.125]
    assert advantages_of(batch, "last_token", last_k=9) == advantages_of(batch, "uniform")
    assert advantages_of(batch, "attention")[0] == pytest.approx([0.25, 0.75, 0.0])
    assert advantages_of(batch, "attention")[3] == pytest.approx([0.0, 0.0625, 0.1875])


def test_gdpo_lets_no_part_drown_another() -> None:
    parts = [(0.0, 1.0), (1000.0, 0.0), (0.0, 0.0), (1.0, 1.0)]
    weights = {"a": 0.5, "b": 0.5}
    batch = grouped().with_info(scores=[Scores(0.0, {"a": a, "b": b}, weights) for a, b in parts])
    rows = [row[0] for row in advantages_of(batch, "gdpo")]
    assert rows == pytest.approx([0.0, 0.0, -(0.5**0.5), 0.5**0.5], abs=1e-4)


def test_whitening_is_as_the_estimators_paper_has_it_unless_it_is_set() -> None:
    auto, on, off = (
        compute_advantages(grouped(), CreditConfig.of(estimator="grpo", whiten=w), kl_coef=0.0)
        for w in ("auto", True, False)
    )
    assert torch.equal(auto["whitened"], off["whitened"])
    assert not torch.equal(auto["whitened"], on["whitened"])
    assert CreditConfig.of().whitens
    assert CreditConfig.of(estimator="reinforce++").whitens


def test_the_critic_may_have_a_lambda_of_its_own() -> None:
    apart = compute_advantages(
        staged(**THREE), CreditConfig.of(lam=0.5, lam_critic=1.0), kl_coef=0.0
    )
    assert torch.equal(
        apart["advantages"],
        compute_advantages(staged(**THREE), CreditConfig.of(lam=0.5), kl_coef=0.0)["advantages"],
    )
    assert apart["returns"][0].tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_lambda_grows_with_the_length_of_the_response() -> None:
    rows = {
        "mask": [[1, 1, 1], [1, 0, 1]],
        "scores": [[0.0, 0.0, 1.0]] * 2,
        "values": [[0.3, 0.4, 0.6]] * 2,
    }
    out = compute_advantages(
        staged(**rows, attended=[[1, 1, 1]] * 2), CreditConfig.of(lam_alpha=0.5), kl_coef=0.0
    )
    for row, length in ((0, 3), (1, 2)):
        one = {name: [values[row]] for name, values in rows.items()}
        alone = compute_advantages(
            staged(**one, attended=[[1, 1, 1]]),
            CreditConfig.of(lam=1 - 1 / (0.5 * length)),
            kl_coef=0.0,
        )
        assert torch.allclose(out["advantages"][row], alone["advantages"][0])


def test_the_kl_metric_is_a_mean_over_tokens_not_over_rows() -> None:
    """Three tokens of KL 1 and one of KL 5 are 2 on average.

    A mean of the rows' means would be 3.
    """
    batch = staged(
        [[1, 1, 1], [1, 0, 0]],
        scores=[[0.0] * 3] * 2,
        values=[[0.0] * 3] * 2,
        old=[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        ref=[[-1.0, -1.0, -1.0], [-5.0, 0.0, 0.0]],
    )
    out = compute_advantages(batch, CreditConfig.of(), kl_coef=0.0)
    metrics = credit_metrics(out.with_info(scores=[Scores(0.0, {}, {})] * 2), CreditConfig.of())
    assert metrics["reward/kl"] == 2.0


def test_the_recorded_mean_and_deviation_are_those_that_whitening_used() -> None:
    out = compute_advantages(staged(**THREE), CreditConfig.of(gamma=1, lam=0.95), kl_coef=0.0)
    a = [0.651, 0.58, 0.4]
    mean = sum(a) / 3
    std = (sum((x - mean) ** 2 for x in a) / 2) ** 0.5
    assert out["whiten_mean"].tolist() == pytest.approx([mean])
    assert out["whiten_std"].tolist() == pytest.approx([std], rel=1e-5)


def test_truncated_responses_are_counted_by_response_not_by_token() -> None:
    """One of two responses was cut off; it has three of the four tokens."""
    batch = staged([[1, 1, 1], [1, 0, 0]], scores=[[0.0] * 3] * 2, values=[[0.0] * 3] * 2)
    out = compute_advantages(
        batch.with_columns(truncated=torch.tensor([True, False])), CreditConfig.of(), kl_coef=0.0
    )
    metrics = credit_metrics(out.with_info(scores=[Scores(0.0)] * 2), CreditConfig.of())
    assert metrics["response/truncated"] == 0.5


def test_right_responses_are_counted_by_how_they_ended() -> None:
    """Three were cut off, with scores 1, 0 and 0.5; one was finished, with 0.5."""
    zeros = [[0.0]] * 4
    batch = staged([[1]] * 4, scores=zeros, values=zeros)
    cut = torch.tensor([True, True, True, False])
    out = compute_advantages(batch.with_columns(truncated=cut), CreditConfig.of(), kl_coef=0.0)
    scored = out.with_info(scores=[Scores(score) for score in (1.0, 0.0, 0.5, 0.5)])
    metrics = credit_metrics(scored, CreditConfig.of())
    assert metrics["response/right_truncated"] == pytest.approx(1 / 3)
    assert metrics["response/right_finished"] == 0
    easier = credit_metrics(scored, CreditConfig.of(), correct_score=0.5)
    assert easier["response/right_truncated"] == pytest.approx(2 / 3)
    assert easier["response/right_finished"] == 1
    none_cut = scored.with_columns(truncated=torch.zeros(4, dtype=torch.bool))
    assert "response/right_truncated" not in credit_metrics(none_cut, CreditConfig.of())


# ---- GRPO and the KL ----


@pytest.mark.parametrize("estimator", ["grpo", "maxrl", "grpo_passk", "dr_grpo"])
def test_equal_scores_of_a_group_give_no_advantage_with_default_settings(estimator) -> None:
    """Their KL differs, and would be all that is left to compare."""
    mask = [[1, 1]] * 3
    batch = staged(
        mask,
        scores=[[0.0, 0.7]] * 3,
        values=[[0.0, 0.0]] * 3,
        old=[[-1.0, -1.0], [-2.0, -1.0], [-0.5, -3.0]],
        ref=[[-1.5, -1.0], [-1.0, -1.0], [-0.1, -0.2]],
    ).with_columns(group=torch.zeros(3, dtype=torch.long))
    config = CreditConfig.of(estimator)
    found = compute_advantages(batch, config, kl_coef=config.kl_coef)
    assert found["advantages"].tolist() == [[0.0, 0.0]] * 3
    noise = compute_advantages(batch, config, kl_coef=0.02)["advantages"]
    assert noise.abs().max() > 0.01


def test_gdpo_is_whitened_over_tokens_or_over_responses() -> None:
    """Two prompts. A is ±1/√2 in each, on 3, 1, 1 and 1 tokens."""
    mask = [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    batch = hand_batch(mask).with_columns(
        group=torch.tensor([0, 0, 1, 1]),
        token_level_scores=torch.zeros(4, 3),
        values=torch.zeros(4, 3),
        bootstrap=torch.zeros(4),
    )
    batch = batch.with_info(scores=[Scores(0.0, {"a": float(x)}, {"a": 1.0}) for x in (1, 0, 1, 0)])

    def whitening_of(**settings) -> tuple[float, float]:
        found = compute_advantages(batch, CreditConfig.of("gdpo", **settings), kl_coef=0.0)
        return float(found["whiten_mean"][0]), float(found["whiten_std"][0])

    # the four responses: two of 1/√2 and two of −1/√2, variance 4·½/3
    assert whitening_of(whiten_over="responses") == pytest.approx((0, (2 / 3) ** 0.5), abs=1e-4)
    # the six tokens: four of 1/√2 and two of −1/√2, mean √2/6, variance (6·½ − 6·2/36)/5
    assert whitening_of() == pytest.approx((2**0.5 / 6, (8 / 15) ** 0.5), abs=1e-4)


def test_whitened_rewards_have_unit_variance_and_keep_their_mean() -> None:
    """Rewards 0, 0, 0 and 4: μ_r = 1, σ_r = 2, so they become ½, ½, ½ and 2½."""
    batch = staged([[1, 1], [1, 1]], scores=[[0.0, 0.0], [0.0, 4.0]], values=[[0.0, 0.0]] * 2)
    config = CreditConfig.of("gae", whiten_rewards=True)
    found = compute_advantages(batch, config, kl_coef=0.0)
    assert found["token_level_rewards"].tolist() == [
        pytest.approx([0.5, 0.5]),
        pytest.approx([0.5, 2.5]),
    ]
    assert found["reward_mean"].tolist() == [1.0, 1.0]
    assert found["reward_std"].tolist() == pytest.approx([2.0, 2.0])
    assert "reward_mean" not in compute_advantages(batch, CreditConfig.of(), kl_coef=0.0)
