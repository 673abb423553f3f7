"""A few steps of every estimator, loss and correction on the tiny model: they train, and explain
confirms their numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from telescope import Trainer, ledger
from telescope.algorithms import ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES
from telescope.algorithms.definitions.policy import on_sampler
from telescope.explain.questions import answer
from telescope.explain.terminal import render
from telescope.explain.trace import traces
from telescope.roles.critic import ZeroCritic
from telescope.run.export import export_run
from telescope.run.live import explain_pair
from tests.resumed import whole_and_resumed

FAST = [
    ("rollout.batch_size", "4"), ("rollout.n", "3"), ("rollout.max_response_tokens", "5"),
    ("eval.samples", "1"), ("checkpoint.every", "0"),
    ("actor.minibatches", "2"), ("ledger.samples", "all"),
    ("actor.lr", "3e-2"), ("critic.lr", "3e-2"),
]  # fmt: skip
NEEDS = {
    "attention": [("reward.attention", "tests.test_every_algorithm:looked_at")],
}


def looked_at(response_ids: list[list[int]]) -> list[list[float]]:
    """A stand-in for a reward model's attention: later tokens count more."""
    return [[float(t + 1) for t in range(len(ids))] for ids in response_ids]


def nowhere(response_ids: list[list[int]]) -> list[list[float]]:
    return [[0.0] * len(ids) for ids in response_ids]


def lengths(response_ids: list[list[int]]) -> list[float]:
    return [len(ids) + sum(ids) % 5 / 3 for ids in response_ids]


def parity(response_ids: list[list[int]]) -> list[list[float]]:
    """A score on every token."""
    return [[float(i % 3 == 0) for i in ids] for ids in response_ids]


def run(make_config, *overrides: tuple[str, str], mismatch: float = 0.0) -> tuple[Trainer, list]:
    """A run of two steps and the samples of its last.

    `mismatch` is how far the sampler's log-probs are from the trainer's.
    """
    trainer = Trainer(make_config(*FAST, *overrides), reward={"lengths": lengths, "parity": parity})
    trainer.held_out = None
    actor, sample, noise = (
        trainer.roles.actor,
        trainer.roles.actor.sample,
        torch.Generator().manual_seed(0),
    )

    def off(prompts, **kwargs):
        batch = sample(prompts, **kwargs)
        return batch.with_columns(
            rollout_log_probs=batch["rollout_log_probs"]
            + mismatch * torch.randn(batch.mask.shape, generator=noise)
        )

    if mismatch:
        actor.sample = off
    before = [p.detach().clone() for p in trainer.roles.actor.model.parameters()]
    metrics = trainer.fit()
    assert all(math.isfinite(value) for value in metrics.values())
    assert any(
        not torch.equal(a, b)
        for a, b in zip(before, trainer.roles.actor.model.parameters(), strict=True)
    )
    return trainer, ledger.samples(trainer.config.run_dir, 2)


def confirmed(samples: list, *names: str) -> None:
    """All that explain recomputes equals the record, and these quantities are among it."""
    seen = set()
    for sample in samples:
        for t in range(len(sample)):
            found = traces(sample, t)
            assert not [trace for trace in found if trace.ok is False], sample.settings
            seen |= {trace.name for trace in found if trace.ok}
    assert set(names) <= seen


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_every_estimator_trains_and_its_advantage_is_recomputed(
    make_config, estimator: str
) -> None:
    trainer, samples = run(make_config, ("credit.estimator", estimator), *NEEDS.get(estimator, []))
    assert isinstance(trainer.roles.critic, ZeroCritic) == (not ESTIMATORS[estimator].needs.critic)
    needs = ESTIMATORS[estimator].needs
    names = ["whitened", "clip"]
    names += ["return"] if needs.critic else []
    names += [] if needs.score_parts else ["advantage"]
    confirmed(samples, *names)
    advantages = [a for sample in samples for a in sample.columns["advantages"]]
    assert max(advantages) > min(advantages)
    if ESTIMATORS[estimator].needs.groups and estimator != "optimal_token_baseline":
        assert len({sample.prompt_index for sample in samples}) == 4
    assert estimator in render(samples[0], lang="en", width=100) or estimator == "gae"


def test_attention_that_is_nowhere_is_explained_as_equal_shares(make_config) -> None:
    nowhere = ("reward.attention", "tests.test_every_algorithm:nowhere")
    _, samples = run(make_config, ("credit.estimator", "attention"), nowhere)
    confirmed(samples, "advantage")
    sample = max(samples, key=len)
    assert len(set(sample.columns["advantages"])) == 1 < len(sample)
    assert sample.columns["advantages"][0] != 0


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
def test_every_policy_loss_trains_and_its_objective_is_recomputed(make_config, loss: str) -> None:
    extra = [("actor.cov_share", "0.2")] if loss.endswith("_cov") else []
    extra += [("actor.cov_low", "-0.5")] if loss == "clip_cov" else []
    _, samples = run(make_config, ("actor.loss", loss), ("credit.estimator", "grpo"), *extra)
    confirmed(samples, "ratio", {"clip": "clip", "cpi": "surrogate"}.get(loss, "objective"))


def test_an_adapted_beta_is_the_one_that_is_recorded(make_config) -> None:
    adaptive = [("actor.loss", "kl_penalty"), ("actor.beta_target", "1e-6"), ("steps", "3")]
    trainer, _ = run(make_config, *adaptive)
    betas = [row["actor/beta"] for row in trainer.history() if "actor/beta" in row]
    assert betas == [1.0, 2.0, 4.0]
    confirmed(ledger.samples(trainer.config.run_dir, 3), "objective")
    assert (
        Trainer(
            trainer.config, reward={"lengths": lengths, "parity": parity}, resume=True
        ).roles.actor.loss.beta
        == 8.0
    )


def test_a_wrong_number_shows_at_the_step_where_it_went_wrong(make_config) -> None:
    """What `confirmed` rests on: an advantage, a weight and an objective that were changed are
    found.
    """
    sample = run(
        make_config,
        ("credit.estimator", "grpo"),
        ("actor.loss", "gspo"),
        ("actor.importance", "token"),
    )[1][0]

    def wrong(changed) -> set[str]:
        return {trace.name for trace in traces(changed, 0) if trace.ok is False}

    update = sample.actor_updates[-1]
    bent = {name: [x + 0.01 for x in getattr(update, name)] for name in ("loss", "weight")}
    assert wrong(sample) == set()
    assert "advantage" in wrong(
        replace(
            sample,
            columns=sample.columns
            | {"advantages": [a + 0.01 for a in sample.columns["advantages"]]},
        )
    )
    assert wrong(replace(sample, actor_updates=[replace(update, loss=bent["loss"])])) == {
        "objective"
    }
    assert wrong(replace(sample, actor_updates=[replace(update, weight=bent["weight"])])) == {
        "weight"
    }


@pytest.mark.parametrize("loss", sorted(VALUE_LOSSES))
def test_every_value_loss_trains_and_is_recomputed(make_config, loss: str) -> None:
    extra = [("critic.huber_delta", "0.5")] if loss == "huber" else []
    confirmed(run(make_config, ("critic.loss", loss), *extra)[1], "value_loss")


def test_lambdas_by_length_and_of_the_critic_are_recomputed(make_config) -> None:
    samples = run(make_config, ("credit.lam_alpha", "0.3"), ("credit.lam_critic", "1.0"))[1]
    confirmed(samples, "advantage", "advantage_sum", "return")


def test_the_last_k_tokens_share_the_outcome_and_it_is_recomputed(make_config) -> None:
    samples = run(make_config, ("credit.estimator", "last_token"), ("credit.last_k", "3"))[1]
    confirmed(samples, "advantage")
    for sample in samples:
        shares, k = sample.columns["advantages"], min(3, len(sample))
        assert shares == [0.0] * (len(sample) - k) + shares[-1:] * k
    longest = max(samples, key=len)
    assert ".3333·(" in next(
        trace.substituted
        for trace in traces(longest, len(longest) - 2)
        if trace.name == "advantage"
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_are_recorded_and_recomputed(make_config, level: str) -> None:
    trainer, samples = run(
        make_config, ("actor.importance", level), ("actor.importance_cap", "1.5"), mismatch=0.5
    )
    confirmed(samples, "weight", "ratio")
    weights = [w for sample in samples for w in sample.actor_updates[0].weight]
    assert 0 < min(weights) < 0.9
    assert max(weights) == 1.5
    assert trainer.last_metrics()["actor/importance"] == pytest.approx(
        sum(weights) / len(weights), rel=1e-4
    )


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_rejected_tokens_take_no_part_in_the_update(make_config, level: str) -> None:
    bounds = [("actor.reject", level), ("actor.reject_low", "0.7"), ("actor.reject_high", "1.4")]
    trainer, samples = run(make_config, *bounds, mismatch=0.5)
    confirmed(samples, "weight", "ratio")
    weights = [w for sample in samples for w in sample.actor_updates[0].weight]
    losses = [loss for sample in samples for loss in sample.actor_updates[0].loss]
    assert set(weights) == {0.0, 1.0}
    assert all(loss == 0 for loss, weight in zip(losses, weights, strict=True) if weight == 0)
    assert trainer.last_metrics()["actor/rejected"] == pytest.approx(
        weights.count(0.0) / len(weights)
    )


ICEPOP = [
    ("actor.importance", "token"),
    ("actor.importance_mode", "mask"),
    ("actor.importance_low", "0.7"),
    ("actor.importance_cap", "1.4"),
]
AT_LEAST = [("actor.importance", "sequence"), ("actor.importance_low", "0.8")]
OPTIONS = {
    "icepop, outliers rejected": [*ICEPOP, ("actor.reject_outlier", "3")],
    "a lower bound, rejection by k3": [
        *AT_LEAST,
        ("actor.reject", "seq_max_k3"),
        ("actor.reject_high", "0.1"),
    ],
    "rejection by k2": [("actor.reject", "seq_mean_k2"), ("actor.reject_high", "0.04")],
    "off-policy mask, top entropy": [
        ("actor.off_policy_mask", "0.05"),
        ("actor.top_entropy", "0.5"),
    ],
    "cispo on the sampler": [("actor.loss", "cispo"), ("actor.anchor", "sampler")],
    "dppo_tv on the sampler": [("actor.loss", "dppo_tv"), ("actor.anchor", "sampler")],
    "gspo with a dual clip": [("actor.loss", "gspo"), ("actor.dual_clip", "1.1")],
    "sapo by sequence": [("actor.loss", "sapo"), ("actor.ratio_level", "sequence")],
    "grpo without oneself": [("credit.estimator", "grpo"), ("credit.leave_one_out", "true")],
    "gdpo over responses": [("credit.estimator", "gdpo"), ("credit.whiten_over", "responses")],
    "prompt-mean": [("actor.aggregation", "prompt-mean")],
    "whitened rewards": [("credit.whiten_rewards", "true")],
    "rescaled scores": [
        ("reward.scale", "0.5"),
        ("reward.shift", "-1"),
        ("reward.normalise", "batch"),
    ],
}


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_every_option_trains_and_its_numbers_are_recomputed(make_config, option: str) -> None:
    trainer, samples = run(make_config, *OPTIONS[option], mismatch=0.3)
    weighed = trainer.config.actor.weighs
    confirmed(samples, "ratio", "whitened", *["weight"] * weighed)
    if weighed:
        weights = [w for sample in samples for w in sample.actor_updates[0].weight]
        assert 0.0 in weights
        assert max(weights) > 0
    if on_sampler(trainer.config.actor):
        sample = samples[0]
        assert sample.actor_updates[0].old_log_probs == sample.columns["rollout_log_probs"]
    if trainer.config.credit.whiten_rewards:
        confirmed(samples, "reward")


def test_the_sampler_s_distance_is_measured(make_config) -> None:
    """One minibatch, so that the metrics are over all responses of the step."""
    one = [("actor.minibatches", "1"), ("actor.old_log_probs", "forward")]
    trainer, samples = run(make_config, *one, mismatch=0.3)
    metrics = trainer.last_metrics()
    gaps = [
        [old - sampled for old, sampled in zip(
            sample.actor_updates[0].old_log_probs, sample.columns["rollout_log_probs"], strict=True
        )]
        for sample in samples
    ]  # fmt: skip
    ratios = [math.exp(gap) for row in gaps for gap in row]
    squares = [ratio**2 for ratio in ratios]
    of_rows = [math.exp(2 * sum(row)) for row in gaps]
    ess = sum(ratios) ** 2 / len(ratios) / sum(squares)
    assert metrics["rollout/ess"] == pytest.approx(ess, rel=1e-4)
    assert 0.5 < ess < 0.99
    assert metrics["rollout/chi2_token"] == pytest.approx(sum(squares) / len(squares) - 1, rel=1e-3)
    assert metrics["rollout/chi2_seq"] == pytest.approx(sum(of_rows) / len(of_rows) - 1, rel=1e-3)


def test_a_run_without_a_critic_resumes_bit_for_bit_and_exports_its_actor_alone(
    make_config, tmp_path: Path
) -> None:
    critic_free = [
        *FAST,
        ("credit.estimator", "rloo"),
        ("actor.loss", "kl_penalty"),
        ("actor.beta_target", "1e-6"),
        ("steps", "3"),
        ("checkpoint.every", "1"),
    ]
    _, part = whole_and_resumed(make_config, *critic_free, reward={"lengths": lengths}, after=2)
    assert export_run(part.run_dir, tmp_path / "out") == 3
    assert not (tmp_path / "out" / "critic").exists()


def test_explaining_a_pair_works_without_a_critic(make_config) -> None:
    config = make_config(
        *FAST, ("credit.estimator", "grpo"), ("actor.loss", "kl_cov"), ("steps", "1")
    )
    Trainer(config).fit()
    sample, _ = explain_pair("请问1+1=2？", "是的，等于2！", str(config.run_dir))
    assert set(sample.columns["values"]) == {0.0}
    assert not [
        trace for t in range(len(sample)) for trace in traces(sample, t) if trace.ok is False
    ]
    assert "no critic (estimator grpo)" in answer(1, sample, "en").text()
