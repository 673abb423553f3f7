"""Actor and critic updates: one denominator, whatever the split."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from telescope.algorithms import POLICY_LOSSES
from telescope.build import build_roles
from telescope.config import OptimizerConfig
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.errors import DivergedError, TelescopeError
from telescope.roles.actor import LossReport
from telescope.roles.learner import Learner, map_rows, micro_batches
from tests.algorithms.law_rows import MODES
from tests.fakes import hand_batch

SIZES = ["16", "40", "4096"]  # one row at a time, a few, all


def prepared(config):
    """Roles, and a batch after stage 2 with rewards that vary."""
    roles = build_roles(
        config, {"length": lambda completions, response_ids: [len(r) / 7 for r in response_ids]}
    )
    train, _ = build_data(config, roles.actor.tokenizer)
    torch.nn.init.normal_(
        roles.critic.model.head.weight, std=0.1, generator=torch.Generator().manual_seed(0)
    )
    batch = roles.actor.generate_sequences(train.take(range(8), seed=5))
    batch = roles.reference.compute_log_prob(roles.critic.compute_values(batch))
    batch = compute_advantages(roles.reward.compute_reward(batch), config.credit, kl_coef=0.1)
    return roles, batch


def gradients(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("mode", MODES)
def test_micro_batch_size_changes_neither_update_nor_metrics(make_config, mode: str) -> None:
    results = []
    for size in SIZES:
        config = make_config(
            ("actor.micro_batch_tokens", size), ("critic.micro_batch_tokens", size), ("actor.aggregation", mode),
            ("actor.epochs", "2"), ("actor.minibatches", "2"), ("actor.entropy_coef", "0.01"), ("actor.kl_loss_coef", "0.1"),
        )  # fmt: skip
        roles, batch = prepared(config)
        metrics = roles.actor.update_actor(batch) | roles.critic.update_critic(batch)
        log_probs = roles.actor.compute_log_prob(batch) * batch.mask
        values = roles.critic.compute_values(batch)["values"]
        results.append((metrics, log_probs, values))
        moved = (values - batch["values"]).abs().max()
    first, log_probs, values = results[0]
    for metrics, *after in results[1:]:
        assert torch.allclose(after[0], log_probs, atol=1e-4)
        # Adam turns the rounding of a gradient near 0 into a step of up to its learning rate.
        assert (after[1] - values).abs().max() < 0.01 * moved
        assert metrics == pytest.approx(first, abs=2e-5, rel=1e-3)


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
def test_no_policy_loss_feels_the_micro_batch_size(make_config, loss: str) -> None:
    """Not the ones that compare the tokens of a response, nor those that compare the tokens of the minibatch."""
    results = []
    for size in SIZES[::2]:
        overrides = [
            ("actor.micro_batch_tokens", size),
            ("actor.loss", loss),
            ("actor.minibatches", "2"),
            ("actor.lr", "1e-2"),
        ]
        overrides += [
            ("actor.reject", "token"),
            ("actor.reject_low", "0.99"),
            ("actor.reject_high", "1.01"),
        ]  # some tokens are left out
        if loss.endswith("_cov"):
            overrides += [("actor.cov_share", "0.1")]
        if loss == "clip_cov":
            overrides += [("actor.cov_low", "-0.5")]
        roles, batch = prepared(make_config(*overrides))
        apart = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(1)) < 0.3
        batch = batch.with_columns(rollout_log_probs=batch["old_log_probs"] + apart)
        metrics = roles.actor.update_actor(batch)
        assert 0.1 < metrics["actor/rejected"] < 0.6
        results.append((metrics, roles.actor.compute_log_prob(batch) * batch.mask))
    assert torch.allclose(results[0][1], results[1][1], atol=1e-4)
    assert results[0][0] == pytest.approx(results[1][0], abs=2e-5, rel=1e-3)


def test_rejected_tokens_count_in_no_denominator(make_config) -> None:
    """verl 4852, rLLM 508: the loss is the mean over the tokens that are left."""
    roles, batch = prepared(make_config(("actor.reject", "token")))
    far = torch.zeros_like(batch.mask)
    far[:, 1:] = True
    batch = batch.with_columns(rollout_log_probs=batch["old_log_probs"] + 5.0 * far)
    metrics = roles.actor.update_actor(batch)
    assert metrics["actor/pg_loss"] == pytest.approx(
        -float(batch["whitened"][:, 0].mean()), abs=1e-6
    )
    assert metrics["actor/rejected"] == pytest.approx(1 - len(batch) / batch.num_tokens)
    assert metrics["rollout/logprob_diff"] == pytest.approx(
        5 * metrics["actor/rejected"], rel=1e-4
    )  # the gap of all tokens


def test_the_accumulated_gradient_is_the_gradient_of_the_whole(make_config) -> None:
    flat = []
    for size in SIZES:
        roles, batch = prepared(make_config(("actor.micro_batch_tokens", size)))
        loss = partial(roles.actor._loss, report=LossReport(on_policy=False))
        roles.actor.learner.backward(batch, loss)
        flat.append(gradients(roles.actor.model))
    assert torch.allclose(flat[0], flat[2], atol=1e-6)
    assert torch.allclose(flat[1], flat[2], atol=1e-6)


def test_ppo_kl_is_the_whole_distance_where_the_ratio_is_limited(make_config) -> None:
    roles, batch = prepared(make_config())
    batch = batch.with_columns(old_log_probs=roles.actor.compute_log_prob(batch) + 100.0)
    report = LossReport(on_policy=False)
    roles.actor.learner.backward(batch, partial(roles.actor._loss, report=report))
    assert report.meter.result()["actor/ppo_kl"] == pytest.approx(100.0, rel=1e-5)


def test_on_the_first_update_the_ratio_is_exactly_one_and_approx_kl_exactly_zero(
    make_config,
) -> None:
    roles, batch = prepared(make_config(("actor.micro_batch_tokens", "16")))
    metrics = roles.actor.update_actor(batch)
    assert metrics["actor/approx_kl"] == 0.0
    assert metrics["actor/ppo_kl"] == 0.0
    assert metrics["actor/pg_clipfrac"] == 0.0
    expected = -float((batch["whitened"].double() * batch.mask).sum() / batch.num_tokens)
    assert metrics["actor/pg_loss"] == pytest.approx(expected, abs=1e-6)


def test_a_second_epoch_has_moved_away_from_the_old_policy(make_config) -> None:
    roles, batch = prepared(make_config(("actor.epochs", "2"), ("actor.lr", "1e-2")))
    assert roles.actor.update_actor(batch)["actor/approx_kl"] > 0


def test_early_stop_on_kl_skips_the_rest_of_the_update(make_config) -> None:
    roles, batch = prepared(
        make_config(("actor.epochs", "4"), ("actor.lr", "1e-2"), ("actor.target_kl", "1e-9"))
    )
    metrics = roles.actor.update_actor(batch)
    assert metrics["actor/updates"] == 1
    assert all(p.grad is None for p in roles.actor.model.parameters())


def test_gradient_clipping_is_applied(make_config) -> None:
    """With plain SGD of rate 1 the weights would move by exactly the clipped norm; AdamW is told a clipped gradient instead."""
    roles, batch = prepared(make_config(("critic.max_grad_norm", "1e-3")))
    seen = []
    step = roles.critic.learner.optimizer.step
    roles.critic.learner.optimizer.step = lambda: (
        seen.append(float(gradients(roles.critic.model).norm())) or step()
    )
    norm = roles.critic.update_critic(batch)["critic/grad_norm"]
    assert norm > 1e-3
    assert seen[0] == pytest.approx(1e-3, rel=1e-3)


def test_value_head_and_backbone_both_learn_at_the_scheduled_rate(make_config) -> None:
    roles, batch = prepared(
        make_config(("critic.schedule", "linear"), ("critic.warmup_steps", "1"))
    )
    parameters = {
        id(p) for group in roles.critic.learner.optimizer.param_groups for p in group["params"]
    }
    assert parameters == {id(p) for p in roles.critic.model.parameters()}
    before = [p.detach().clone() for p in roles.critic.model.parameters()]
    roles.critic.update_critic(batch)
    moved = [
        not torch.equal(a, b) for a, b in zip(before, roles.critic.model.parameters(), strict=True)
    ]
    assert moved[-2:] == [True, True]  # head weight and bias
    assert sum(moved) > len(moved) // 2


def test_a_critic_step_reduces_the_error(make_config) -> None:
    roles, batch = prepared(make_config(("critic.epochs", "20"), ("critic.clip_value", "none")))
    roles.critic.update_critic(batch)
    after = roles.critic.compute_values(batch)
    error = [
        float(((b["values"] - batch["returns"]) ** 2 * batch.mask).sum()) for b in (batch, after)
    ]
    assert error[1] < error[0]


def test_the_first_value_update_clips_nothing(make_config) -> None:
    roles, batch = prepared(make_config())
    assert roles.critic.update_critic(batch)["critic/vf_clipfrac"] == 0.0


def test_the_reference_never_changes(make_config) -> None:
    roles, batch = prepared(make_config(("actor.kl_loss_coef", "0.1")))
    before = [p.clone() for p in roles.reference.model.parameters()]
    roles.actor.update_actor(batch)
    assert all(
        torch.equal(a, b) for a, b in zip(before, roles.reference.model.parameters(), strict=True)
    )
    assert not any(p.requires_grad for p in roles.reference.model.parameters())
    assert any(
        not torch.equal(a, b) for a, b in zip(before, roles.actor.model.parameters(), strict=True)
    )


def test_the_reference_enters_the_loss_only_in_kl_loss_mode(make_config) -> None:
    for coefficient, same in (("0", True), ("0.5", False)):
        weights = []
        for shift in (0.0, 1.0):
            roles, batch = prepared(make_config(("actor.kl_loss_coef", coefficient)))
            roles.actor.update_actor(batch.with_columns(ref_log_prob=batch["ref_log_prob"] - shift))
            weights.append(
                torch.cat([p.detach().flatten() for p in roles.actor.model.parameters()])
            )
        assert torch.equal(*weights) is same


def test_micro_batches_stay_within_the_budget_and_hold_every_row_once() -> None:
    batch = hand_batch([[1] * n + [0] * (9 - n) for n in (1, 9, 4, 4, 2, 9, 3)])
    lengths = batch["attention_mask"].sum(1)
    for padded in (True, False):
        groups = micro_batches(batch, 24, padded=padded)
        assert sorted(row for group in groups for row in group.tolist()) == list(range(7))
        for group in groups:
            assert (
                len(group) * int(lengths[group].max()) if padded else int(lengths[group].sum())
            ) <= 24


def test_packed_micro_batches_are_as_few_and_as_even_as_can_be() -> None:
    batch = hand_batch([[1] * n + [0] * (9 - n) for n in (9, 1, 5, 5, 9, 1)], prompt=1)
    groups = micro_batches(batch, 18, padded=False)  # 36 tokens
    assert sorted(int(batch["attention_mask"][group].sum()) for group in groups) == [18, 18]


def test_results_come_back_in_their_own_rows() -> None:
    batch = hand_batch(
        [[1] * n + [0] * (5 - n) for n in (1, 5, 3, 2)], values=torch.arange(20.0).reshape(4, 5) + 1
    )
    values, first = map_rows(batch, 8, lambda rows: (rows["values"], rows["input_ids"][:, 0]))
    assert torch.equal(values, batch["values"])
    assert torch.equal(first, batch["input_ids"][:, 0])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.5]),
        ("cosine", [0.5, 1.0, 1.0, 0.5]),
    ],
)
def test_learning_rate_warms_up_then_decays(schedule: str, expected: list[float]) -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=2, schedule=schedule)
    learner = Learner(torch.nn.Linear(1, 1), config, total_updates=4, seed=0)
    rates = []
    for _ in range(4):
        rates.append(learner.learning_rate())
        learner.updates += 1
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_learning_rate_falls_to_its_minimum(schedule: str) -> None:
    """Half-way between 1.0 and 0.2 is 0.6."""
    config = OptimizerConfig(lr=1.0, schedule=schedule, lr_min=0.2)
    learner = Learner(torch.nn.Linear(1, 1), config, total_updates=2, seed=0)
    rates = []
    for learner.updates in range(3):
        rates.append(learner.learning_rate())
    assert rates == pytest.approx([1.0, 0.6, 0.2])


def test_every_epoch_visits_every_row_once(make_config) -> None:
    config = OptimizerConfig(epochs=3, minibatches=3)
    learner = Learner(torch.nn.Linear(1, 1), config, total_updates=1, seed=0)
    batch = hand_batch([[1]] * 8).with_columns(values=torch.arange(8.0)[:, None])
    seen: dict[int, list[int]] = {}
    for epoch, _, minibatch in learner.minibatches(batch):
        seen.setdefault(epoch, []).extend(minibatch["values"][:, 0].int().tolist())
    assert all(sorted(rows) == list(range(8)) for rows in seen.values())
    assert seen[0] != seen[1]


def test_the_budget_counts_the_padding_of_prompts_and_responses() -> None:
    """A long prompt beside a long response pads both: 2 rows of 5 + 5 tokens are 20, not 12."""
    long_prompt = torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]])
    batch = hand_batch([[1, 0, 0, 0, 0], [1] * 5], prompt=5).with_columns(
        attention_mask=long_prompt
    )
    assert [len(group) for group in micro_batches(batch, 19)] == [1, 1]
    assert [len(group) for group in micro_batches(batch, 20)] == [2]


def test_a_gradient_that_is_not_finite_ends_the_run_before_it_is_applied(make_config) -> None:
    roles, batch = prepared(make_config(("critic.minibatches", "2")))
    learner = roles.critic.learner
    roles.critic.update_critic(batch)
    before = {name: value.clone() for name, value in learner._state().items()}
    with pytest.raises(TelescopeError, match="a gradient is not finite"):
        roles.critic.update_critic(batch.with_columns(returns=batch["returns"] * float("inf")))
    after = learner._state()
    del before["updates"], after["updates"]
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    roles.critic.update_critic(batch)  # a good gradient is applied again
    assert not torch.equal(
        learner._state()["weight/backbone.norm.weight"], before["weight/backbone.norm.weight"]
    )


def test_one_minibatch_needs_no_forward_for_the_old_policy(make_config) -> None:
    """π_old is then the update's own forward; the sampler's log-probs stand in for it in the rewards' KL."""
    results = []
    for setting in ("auto", "forward"):
        roles, batch = prepared(make_config(("actor.old_log_probs", setting)))
        same = torch.equal(batch["old_log_probs"], batch["rollout_log_probs"])
        assert same is (setting == "auto")
        metrics = roles.actor.update_actor(batch)
        assert 0 < metrics["rollout/logprob_diff"] < 1e-4
        assert metrics["actor/approx_kl"] == 0
        results.append(torch.cat([p.detach().flatten() for p in roles.actor.model.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("setting", [("actor.epochs", "2"), ("actor.minibatches", "2")])
def test_several_minibatches_need_the_old_policy_from_before(
    make_config, setting: tuple[str, str]
) -> None:
    roles, batch = prepared(make_config(setting))
    assert not torch.equal(batch["old_log_probs"], batch["rollout_log_probs"])
    assert torch.equal(
        batch["old_log_probs"], roles.actor.compute_log_prob(batch).masked_fill(~batch.mask, 0.0)
    )


def test_the_samplers_log_probs_can_stand_for_the_old_policy(make_config) -> None:
    """Two minibatches: the ratio of the first is 1, that of the second has the sampler's rounding."""
    results = []
    for setting in ("sampler", "forward"):
        config = make_config(("actor.old_log_probs", setting), ("actor.minibatches", "2"))
        roles, batch = prepared(config)
        same = torch.equal(batch["old_log_probs"], batch["rollout_log_probs"])
        assert same is (setting == "sampler")
        assert 0 < roles.actor.update_actor(batch)["rollout/logprob_diff"] < 1e-4
        results.append(torch.cat([p.detach().flatten() for p in roles.actor.model.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)


def test_steps_too_small_for_bfloat16_are_not_lost(make_config) -> None:
    """At 1.0 the next bfloat16 is 0.008 away: a thousand steps of 1e-4 must still arrive."""
    model = torch.nn.Linear(3, 1, bias=False, dtype=torch.bfloat16)
    torch.nn.init.ones_(model.weight)
    learner = Learner(model, OptimizerConfig(lr=1e-4, max_grad_norm=1e9), total_updates=1, seed=0)
    for _ in range(1000):
        model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        learner.accumulate_gradients()
        learner.step()
    assert model.weight.dtype is torch.bfloat16
    torch.testing.assert_close(model.weight.float(), torch.full((1, 3), 0.9), rtol=0, atol=0.004)
    torch.testing.assert_close(learner.masters[0], torch.full((1, 3), 0.9), rtol=0, atol=1e-3)


def test_micro_batches_in_bfloat16_add_up_in_float32() -> None:
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    learner = Learner(model, OptimizerConfig(), total_updates=1, seed=0)
    for _ in range(300):  # in bfloat16 a sum stops growing at 256
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        learner.accumulate_gradients()
    assert float(learner.masters[0].grad) == 300


def test_importance_weights_scale_the_gradient_of_tokens_the_sampler_saw_otherwise(
    make_config,
) -> None:
    """With a sampler that thought every token half as likely, every weight is 2 (or the cap), and so the gradient's scale."""
    norms = {}
    for setting, cap in (("off", "9"), ("token", "9"), ("token", "1.5")):
        roles, batch = prepared(
            make_config(
                ("actor.importance", setting),
                ("actor.importance_cap", cap),
                ("actor.old_log_probs", "forward"),
            )
        )
        batch = batch.with_columns(rollout_log_probs=batch["old_log_probs"] - 0.6931471805599453)
        norms[setting, cap] = roles.actor.update_actor(batch)["actor/grad_norm"]
    assert norms["token", "9"] == pytest.approx(2 * norms["off", "9"], rel=1e-4)
    assert norms["token", "1.5"] == pytest.approx(1.5 * norms["off", "9"], rel=1e-4)


def test_rows_longer_than_the_budget_go_one_by_one() -> None:
    batch = hand_batch([[1] * 9, [1] * 9, [1] * 3 + [0] * 6])
    for padded in (True, False):
        assert sorted(
            row for group in micro_batches(batch, 4, padded=padded) for row in group.tolist()
        ) == [0, 1, 2]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_batch_with_fewer_rows_than_minibatches_is_trained_on_row_by_row(
    make_config, rows: int
) -> None:
    config = make_config(("actor.minibatches", "4"), ("critic.minibatches", "4"))
    roles, batch = prepared(config)
    few = batch.rows(torch.arange(rows))
    assert roles.critic.update_critic(few)["critic/grad_norm"] > 0
    assert roles.actor.update_actor(few)["actor/updates"] == config.actor.epochs * rows


@pytest.mark.parametrize("what", ["weight", "moment"])
def test_weights_and_moments_that_are_not_finite_are_not_saved(what: str, tmp_path) -> None:
    model = torch.nn.Linear(2, 1)
    learner = Learner(model, OptimizerConfig(), total_updates=1, seed=0)
    learner.save(tmp_path / "good")
    spoilt = model.weight.data if what == "weight" else learner._state()["exp_avg/weight"]
    spoilt[0, 0] = float("nan") if what == "weight" else float("inf")
    with pytest.raises(DivergedError, match="not saved: lower the learning rate"):
        learner.save(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_an_entropy_target_above_the_entropy_gives_a_share_of_the_bonus(make_config) -> None:
    """The update is that of the smaller fixed weight, and the metric says which it was."""
    chosen = (("actor.entropy_coef", "0.5"), ("actor.minibatches", "2"), ("actor.lr", "1e-2"))
    roles, batch = prepared(make_config(*chosen, ("actor.entropy_target", "10")))
    entropy = -(batch["old_log_probs"] * batch.mask).sum() / batch.mask.sum()
    weight = 0.5 * (1 - float(entropy) / 10)
    assert 0.1 < weight < 0.45
    metrics = roles.actor.update_actor(batch)
    assert metrics["actor/entropy_coef"] == pytest.approx(weight, rel=1e-6)

    fixed, same = prepared(make_config(*chosen, ("actor.entropy_coef", repr(weight))))
    fixed.actor.update_actor(same)
    after = roles.actor.compute_log_prob(batch)
    assert torch.allclose(after, fixed.actor.compute_log_prob(same), atol=1e-6)


def test_above_its_target_entropy_is_not_paid_for(make_config) -> None:
    chosen = (("actor.minibatches", "2"), ("actor.lr", "1e-2"))
    bonus = (("actor.entropy_coef", "5"), ("actor.entropy_target", "1e-3"))
    roles, batch = prepared(make_config(*chosen, *bonus))
    assert roles.actor.update_actor(batch)["actor/entropy_coef"] == 0
    none, same = prepared(make_config(*chosen))
    assert "actor/entropy_coef" not in none.actor.update_actor(same)
    after = roles.actor.compute_log_prob(batch)
    assert torch.allclose(after, none.actor.compute_log_prob(same), atol=1e-6)
