from __future__ import annotations

import pytest
import torch

from telescope import Trainer, ledger
from telescope.batch import Response
from telescope.config import RewardConfig
from telescope.roles.reward import Reward
from telescope.roles.shaping import Shaping
from tests.fakes import hand_batch
from tests.test_every_algorithm import FAST, NEEDS, confirmed

MASK = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def shaped(scores, mask=MASK, limit: int = 4, **settings):
    reward = Reward(
        {"f": lambda completions: scores}, shape=Shaping(RewardConfig(**settings), limit)
    )
    return reward, reward.compute_reward(hand_batch(mask))


def paid(batch) -> list[float]:
    return batch["token_level_scores"].sum(1).tolist()


def test_without_settings_scores_are_paid_as_they_are() -> None:
    _, batch = shaped([1.0, 2.0, 3.0, 4.0])
    assert paid(batch) == [1, 2, 3, 4]
    assert all(row.shaped is None for row in batch.info)


def test_the_overlong_penalty_is_a_part_by_name_and_lands_on_the_last_token() -> None:
    _, batch = shaped([1.0] * 4, overlong_tokens=2, overlong_penalty=0.5)
    assert batch["token_level_scores"].tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0.75, 0],
        [0, 0, 0, 0.5],
    ]
    assert [scores.parts["overlong"] for scores in batch.scores] == [0, 0, -0.25, -0.5]
    assert [scores.total for scores in batch.scores] == [1.0] * 4  # the task's own


def test_normalised_then_clipped_then_the_penalty() -> None:
    _, batch = shaped([0.0, 0.0, 0.0, 4.0], normalise=True, clip=1.5, overlong_tokens=1)
    root = 3**0.5  # mean 1, deviations −1, −1, −1, 3: σ = √3
    assert paid(batch) == pytest.approx([-1 / root, -1 / root, -1 / root, 1.5 - 1])
    records = [row.shaped for row in batch.info]
    assert [record.clipped for record in records] == [False, False, False, True]
    assert [record.norm_mean for record in records] == [1.0] * 4
    assert [record.norm_std for record in records] == pytest.approx([root] * 4)
    assert [record.paid for record in records] == pytest.approx(paid(batch))


def test_normalisation_is_by_all_responses_so_far() -> None:
    reward, _ = shaped([0.0, 0.0, 2.0, 2.0], normalise=True)
    reward.functions = {"f": lambda completions: [4.0, 4.0, 6.0, 6.0]}
    later = reward.compute_reward(hand_batch(MASK))
    std = 5**0.5  # of 0 0 2 2 4 4 6 6
    assert paid(later) == pytest.approx([1 / std, 1 / std, 3 / std, 3 / std])


def test_scores_on_several_tokens_keep_their_proportions() -> None:
    _, batch = shaped(
        [[3.0], [1.0, 2.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]], normalise=True
    )  # μ = 2, σ = 1
    assert batch["token_level_scores"].tolist() == [
        [1, 0, 0, 0],
        [1, 2 - 2, 0, 0],
        [0, 0, -1, 0],
        [0, 0, 0, -1],
    ]


def test_an_empty_response_is_paid_nothing_and_breaks_nothing() -> None:
    _, batch = shaped(
        [0.0, 2.0], mask=[[0, 0], [1, 1]], limit=2, normalise=True, clip=0.5, overlong_tokens=1
    )
    assert batch["token_level_scores"].tolist() == [[0, 0], [0, -0.5]]


def test_what_a_tool_wrote_counts_for_the_length_and_is_paid_nothing() -> None:
    reward = Reward(
        {"f": lambda completions: [1.0]}, shape=Shaping(RewardConfig(overlong_tokens=2), 4)
    )
    batch = reward.compute_reward(hand_batch([[1, 1, 0, 0]], attended=[[1, 1, 1, 0]]))
    assert batch["token_level_scores"].tolist() == [[0, 0.5, 0, 0]]


def test_the_greedy_baseline_is_shaped_like_what_it_is_compared_with() -> None:
    batch = hand_batch([[1, 0], [1, 1]]).with_info(greedy=[Response(ids=[3, 4]), Response(ids=[5])])
    reward = Reward(
        {"f": lambda response_ids: [len(r) for r in response_ids]},
        shape=Shaping(RewardConfig(normalise=True, overlong_tokens=1), 2),
    )
    batch = reward.compute_reward(batch)
    assert paid(batch) == [-1.0, 1.0 - 1]
    assert batch["greedy_score"].tolist() == [1.0 - 1, -1.0]


def test_evaluation_neither_shapes_nor_counts() -> None:
    reward, _ = shaped([0.0, 0.0, 2.0, 2.0], normalise=True, overlong_tokens=2)
    before = reward.state()
    scored = reward.score(hand_batch(MASK))
    assert [scores.total for scores in scored.scores] == [0.0, 0.0, 2.0, 2.0]
    assert reward.state() == before


def test_the_moments_survive_a_checkpoint_to_the_last_bit() -> None:
    reward, _ = shaped([0.1, 0.7, 2.3, 1 / 3], normalise=True)
    other, _ = shaped([5.0] * 4, normalise=True)
    other.load(reward.state())
    other.functions = reward.functions
    one, two = (r.compute_reward(hand_batch(MASK))["token_level_scores"] for r in (reward, other))
    assert torch.equal(one, two)
    assert reward.state() == other.state()


@pytest.mark.parametrize("estimator", ["gae", "grpo", "remax", "gdpo"])
def test_shaped_rewards_train_and_are_explained(make_config, estimator: str) -> None:
    shape = [("reward.overlong_tokens", "3")] + (
        [] if estimator == "gdpo" else [("reward.normalise", "true"), ("reward.clip", "1")]
    )
    config = make_config(*FAST, ("credit.estimator", estimator), *NEEDS.get(estimator, []), *shape)
    trainer = Trainer(config, reward=lambda response_ids: [sum(ids) % 5 for ids in response_ids])
    metrics = trainer.fit()
    assert -1 <= metrics["reward/overlong"] < 0
    samples = ledger.samples(config.run_dir, 2)
    confirmed(samples, "reward")
    assert all("overlong" in sample.parts for sample in samples)
    total = sum(sum(sample.columns["token_level_scores"]) for sample in samples) / len(samples)
    assert metrics["reward/shaped_mean"] == pytest.approx(total, abs=1e-5)
