"""Dynamic sampling: groups with no spread are replaced, whole, by groups of further prompts."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch

from telescope import Trainer, ledger
from telescope.data.loader import DataLoader
from telescope.rollout.stage import RolloutStage
from tests.resumed import last_checkpoint, whole_and_resumed

SETTINGS = [
    ("rollout.batch_size", "4"), ("rollout.n", "3"), ("rollout.dynamic_sampling", "3"), ("eval.samples", "1"), ("credit.estimator", "grpo"),
    ("ledger.samples", "all"),
]  # fmt: skip


def picky(prompts: list[str], response_ids: list[list[int]]) -> list[float]:
    """Two prompts out of three score alike, whatever is answered."""
    return [
        float(sum(ids)) if sum(map(ord, prompt)) % 3 == 0 else 1.0
        for prompt, ids in zip(prompts, response_ids, strict=True)
    ]


def step_of(trainer: Trainer, rounds: int, step: int = 0) -> tuple[Any, Any, dict[str, float]]:
    """The batch before and after, and metrics."""
    roles = trainer.roles
    prompts = trainer.dataloader.at(step)
    before = roles.actor.generate_sequences(prompts)
    config = trainer.config.rollout.model_copy(update={"dynamic_sampling": rounds})
    stage = RolloutStage(roles.actor, roles.reward, trainer.dataloader, config)
    return before, *stage.generate_sequences(step, prompts)


def prompt_indices(batch) -> list[int]:
    return [row.prompt_index for row in batch.info]


def response_ids(batch) -> list[list[int]]:
    return [row.response.ids for row in batch.info]


def totals(batch) -> list[float]:
    return [scores.total for scores in batch.scores]


def spread(batch) -> dict[int, float]:
    of: dict[int, list[float]] = {}
    for group, score in zip(batch["group"].tolist(), totals(batch), strict=True):
        of.setdefault(group, []).append(score)
    return {group: max(scores) - min(scores) for group, scores in of.items()}


def test_flat_groups_are_replaced_and_the_others_stay_in_their_rows(make_config) -> None:
    trainer = Trainer(make_config(*SETTINGS), reward=picky)
    before, after, metrics = step_of(trainer, rounds=20)
    assert all(spread(after).values())
    was = spread(trainer.roles.reward.score(before))
    flat = [group for group, width in was.items() if width == 0]
    assert metrics["rollout/flat_groups"] == metrics["rollout/refilled_groups"] == len(flat) > 0
    for row in range(12):
        if before.info[row].prompt_index not in flat:
            assert after.info[row].response == before.info[row].response
            assert after.info[row].prompt_index == before.info[row].prompt_index


def test_groups_are_whole_and_rows_keep_what_is_theirs(make_config) -> None:
    """A row's tokens, text, score and log-probs come from one and the same response."""
    trainer = Trainer(make_config(*SETTINGS), reward=picky)
    _, after, _ = step_of(trainer, rounds=20)
    assert set(Counter(after["group"].tolist()).values()) == {3}
    assert after["sample"].tolist() == list(range(12))
    assert prompt_indices(after) == after["group"].tolist()
    data = trainer.dataloader.data
    assert after.prompt_ids() == [data.ids[i] for i in prompt_indices(after)]
    assert totals(after) == picky([row.prompt for row in after.info], response_ids(after))
    assert after["token_level_scores"].sum(1).tolist() == totals(after)
    for row, ids in enumerate(response_ids(after)):
        assert after["responses"][row, : len(ids)].tolist() == ids
        assert int(after.mask[row].sum()) == len(ids)
    again = trainer.roles.actor.compute_log_prob(after)
    assert torch.allclose(again, after["rollout_log_probs"], atol=1e-5)


def test_at_most_so_many_rounds_and_what_is_still_flat_stays(make_config) -> None:
    trainer = Trainer(make_config(*SETTINGS), reward=lambda completions: [1.0] * len(completions))
    before, after, metrics = step_of(trainer, rounds=2)
    assert metrics == {
        "rollout/flat_groups": 4, "rollout/own_score_mean": 1.0, "rollout/refilled_groups": 0, "rollout/refill_rounds": 2,
        "rollout/refill_prompts": 8,
    }  # fmt: skip
    assert response_ids(after) == response_ids(before)


def test_rounds_end_when_the_data_does(make_config, tmp_path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_text("".join(f'{{"prompt": "{i}+1"}}\n' for i in range(6)), "utf-8")
    few = [("data.files", str(path)), ("data.max_prompt_tokens", "16")]
    trainer = Trainer(
        make_config(*SETTINGS, *few), reward=lambda completions: [1.0] * len(completions)
    )
    assert step_of(trainer, rounds=9)[2]["rollout/refill_prompts"] == 2


def test_without_refill_nothing_is_scored_early(make_config) -> None:
    trainer = Trainer(make_config(*SETTINGS), reward=picky)
    before, after, metrics = step_of(trainer, rounds=0)
    assert after.info == before.info
    assert "token_level_scores" not in after
    assert metrics == {}


@pytest.mark.parametrize("shuffle", [True, False])
def test_further_prompts_are_others_each_once_and_a_function_of_seed_and_step(
    shuffle: bool,
) -> None:
    class Rows(list):
        pass

    def loader(seed: int = 0) -> DataLoader:
        return DataLoader(
            Rows(range(10)), batch_size=4, repeat=1, steps=9, seed=seed, shuffle=shuffle
        )

    for step in range(5):
        own = set(loader().indices(step))
        further = list(loader().further_prompts(step))
        assert sorted([*further, *own]) == list(range(10))
        assert further == list(loader().further_prompts(step))
        assert list(islice(loader().further_prompts(step), 2)) == further[:2]
    if not shuffle:
        assert list(loader().further_prompts(1)) == [8, 9, 0, 1, 2, 3]
    else:
        assert list(loader().further_prompts(1)) != list(loader().further_prompts(2))


def test_a_refilled_run_scores_no_response_twice_and_its_ledger_holds_what_it_trained_on(
    make_config,
) -> None:
    seen: list[int] = []

    def counted(prompts, response_ids):
        seen.append(len(prompts))
        return picky(prompts, response_ids)

    trainer = Trainer(make_config(*SETTINGS, ("steps", "2")), reward=counted)
    trainer.held_out = None
    metrics = trainer.fit()
    rows = [row for row in trainer.history() if "rollout/flat_groups" in row]
    assert sum(seen) == sum(12 + 3 * row["rollout/refill_prompts"] for row in rows)
    samples = ledger.samples(trainer.config.run_dir, 2)
    assert len(samples) == 12
    assert sum(sample.score for sample in samples) / 12 == pytest.approx(
        metrics["reward/score_mean"]
    )
    advantages = [a for sample in samples for a in sample.columns["advantages"]]
    assert metrics["rollout/refilled_groups"] < 4 or all(a != 0 for a in advantages)


def test_a_refilled_and_normalised_run_resumes_bit_for_bit(make_config) -> None:
    settings = [
        *SETTINGS,
        ("reward.normalise", "true"),
        ("reward.overlong_tokens", "2"),
        ("steps", "4"),
        ("checkpoint.every", "2"),
    ]
    configs = whole_and_resumed(make_config, *settings, reward=picky, after=3)
    kept = [
        torch.load(last_checkpoint(config) / "state.pt", weights_only=True)["reward"]
        for config in configs
    ]
    assert kept[0] == kept[1]
    assert kept[0]["moments"]["count"] == 4 * 12
