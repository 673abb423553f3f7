"""Bugs that real PPO systems shipped, one test each. The docstring names where it happened.

Row 21 and the rank halves of 4, 5, 6, 8 are in tests/backends/test_pitfalls.py.
"""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import pytest
import torch

import telescope
from telescope import Trainer
from telescope.algorithms import (
    adapt_kl_coef,
    aggregate,
    clipped_policy_loss,
    clipped_value_loss,
    gae,
    kl_penalty,
    masked_mean,
    masked_whiten,
)
from telescope.config import CHOICES, CreditConfig, fields
from telescope.credit import compute_advantages
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError
from telescope.roles.learner import Denominators, map_rows
from telescope.roles.meter import Meter
from telescope.roles.reward import Reward
from tests.algorithms.law_rows import MODES
from tests.fakes import EOS, hand_batch
from tests.roles.test_update import prepared
from tests.test_credit import staged

NAN = float("nan")


@pytest.mark.parametrize("after_the_end", [0.5, 7.0, NAN, math.inf])
def test_01_the_value_after_eos_and_in_padding_cannot_reach_gae(after_the_end: float) -> None:
    """verl PR 50 and PR 1850 (mask one slot late), ROLL PR 447, AReaL PR 1346 and 1351."""
    batch = staged(
        [[1, 1, 1, 0]], scores=[[0.0, 0.0, 1.0, 0.0]], values=[[0.3, 0.4, 0.6, after_the_end]]
    )
    out = compute_advantages(batch, CreditConfig.of(gamma=1, lam=0.95), kl_coef=0.0)
    assert out["advantages"][0].tolist() == pytest.approx([0.651, 0.58, 0.4, 0.0])
    assert out["returns"][0].tolist() == pytest.approx([0.951, 0.98, 1.0, 0.0])


def test_02_a_tool_token_is_no_transition_and_the_score_survives_it() -> None:
    """verl 2337 and 7278, miles PR 1827, SkyRL (mask only in whitening)."""
    rewards, values = torch.tensor([[0.0, 5.0, 0.0, 1.0]]), torch.tensor([[0.3, 5.0, 0.4, 0.6]])
    holed = gae(rewards, values, torch.tensor([[1, 0, 1, 1]]), gamma=0.9, lam=0.8)[0]
    plain = gae(
        torch.tensor([[0.0, 0.0, 1.0]]),
        torch.tensor([[0.3, 0.4, 0.6]]),
        torch.ones(1, 3),
        gamma=0.9,
        lam=0.8,
    )[0]
    assert holed[0, [0, 2, 3]].tolist() == pytest.approx(plain[0].tolist())
    scored = Reward({"f": lambda completions: [1.0]}).compute_reward(
        hand_batch([[1, 1, 0]], attended=[[1, 1, 1]])
    )
    assert scored["token_level_scores"].tolist() == [[0, 1, 0]]
    with pytest.raises(TelescopeError, match="mask 0"):
        hand_batch([[1, 1, 0]]).with_columns(token_level_scores=torch.tensor([[0.0, 0.0, 1.0]]))


def test_03_nan_in_padding_poisons_neither_value_nor_gradient() -> None:
    """verl PR 6361 and its GAE today, OpenRLHF PR 1239 and 1240."""
    mask = torch.tensor([[1, 1, 0]])
    clean, dirty = torch.tensor([[0.1, 0.2, 0.0]]), torch.tensor([[0.1, 0.2, NAN]])
    batch = staged(
        [[1, 1, 0]],
        scores=[[0.0, 1.0, NAN]],
        values=[[0.1, 0.2, NAN]],
        old=[[0.0, 0.0, NAN]],
        ref=[[0.1, 0.1, NAN]],
    )
    out = compute_advantages(batch, CreditConfig.of(), kl_coef=0.1)
    assert all(out[name].isfinite().all() for name in out if out[name].is_floating_point())
    for mode in MODES:
        results = []
        for x in (clean, dirty):
            log_probs = x.clone().requires_grad_()
            policy = clipped_policy_loss(log_probs, x, x, mask)
            value = clipped_value_loss(log_probs, x, x, mask)
            loss = aggregate(policy.loss, mask, mode) + aggregate(value.loss, mask, mode)
            loss.backward()
            results.append((float(loss.detach()), log_probs.grad.tolist()))
        assert results[0] == results[1]
        assert results[0][1][0][2] == 0


def test_04_whitening_ignores_padding_survives_one_token_and_does_not_amplify_rounding() -> None:
    """SkyRL 1305 (mean over padding), ROLL 475, verl today (crash with one token.

    8 × 0.7 gave ±0.056).
    """
    x = torch.tensor([[1.0, 3.0, 100.0]])
    assert masked_whiten(x, torch.tensor([[1, 1, 0]]))[0].tolist() == pytest.approx(
        [-(0.5**0.5), 0.5**0.5, 0]
    )
    assert masked_whiten(x, torch.tensor([[1, 0, 0]])).tolist() == [[0, 0, 0]]
    assert masked_whiten(x, torch.tensor([[0, 0, 0]])).tolist() == [[0, 0, 0]]
    assert masked_whiten(torch.full((8, 1), 0.7), torch.ones(8, 1)).abs().max() == 0


def test_05_micro_batch_size_does_not_change_the_update(make_config) -> None:
    """verl 6957, 7200, 7321, 3332, 3994; prime-rl 583."""
    policies = []
    for size in ("14", "1000"):
        roles, batch = prepared(
            make_config(("actor.micro_batch_tokens", size), ("actor.epochs", "3"))
        )
        roles.actor.update_actor(batch)
        policies.append(roles.actor.compute_log_prob(batch) * batch.mask)
    assert (policies[0] - batch["old_log_probs"]).abs().max() > 1e-2
    assert torch.allclose(*policies, atol=1e-4)


def test_06_denominators_count_what_the_loss_counts() -> None:
    """verl 4852, rLLM 508: counted before masking."""
    batch = hand_batch(
        [[1, 0, 1], [0, 0, 0], [1, 1, 1]], attended=[[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    )
    over = Denominators.of(batch)
    assert (int(over.num_tokens), int(over.num_rows)) == (5, 2)


def test_07_metrics_are_weighted_by_token_and_never_see_padding() -> None:
    """verl 4711 and 3129, trl 6809 and 2496: means of means."""
    meter = Meter()
    meter.tokens("x", torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[1, 1, 1]]))
    meter.tokens("x", torch.tensor([[5.0, 99.0, NAN]]), torch.tensor([[1, 0, 0]]))
    assert meter.result() == {"x": 2.0}
    assert float(masked_mean(torch.tensor([[5.0, NAN]]), torch.tensor([[1, 0]]))) == 5.0


def test_08_length_sorted_results_return_to_their_rows() -> None:
    """JustRL 5: per-token results not un-shuffled."""
    batch = hand_batch([[1] * n + [0] * (4 - n) for n in (2, 4, 1, 3)])
    (ids,) = map_rows(batch, 7, lambda rows: (rows["responses"].float(),))
    assert torch.equal(ids * batch.mask, batch["responses"].float() * batch.mask)


def test_09_log_probs_are_at_the_sampling_temperature(make_config) -> None:
    """trl 4159; slime 557 and 2197 (value head divided by it)."""
    roles, batch = prepared(make_config(("rollout.temperature", "0.5")))
    gap = (batch["rollout_log_probs"] - batch["old_log_probs"]).abs().max()
    assert gap < 1e-5
    cold = roles.critic.compute_values(batch)["values"]
    assert torch.equal(cold, batch["values"])
    roles_hot, _ = prepared(make_config(("rollout.temperature", "2.0"), ("name", "hot")))
    assert torch.allclose(roles_hot.critic.compute_values(batch)["values"], cold)


def test_10_eos_and_padding_are_told_apart_by_position_not_by_id(make_config) -> None:
    """verl 3805 and PR 6310, TRL PR 5303, trl 1893 and 3750: no EOS, pad = eos, empty response,
    score on PAD.
    """
    trainer = Trainer(make_config())
    actor = trainer.roles.actor
    actor.tokenizer.pad_token = actor.tokenizer.eos_token
    actor.sampler.pad = EOS
    batch = actor.generate_sequences(trainer.dataloader.data.take(range(64), seed=1))
    lengths = batch["response_mask"].sum(1)
    ended = ~batch["truncated"]
    assert ended.any()
    assert (~ended).any()
    for row in range(len(batch)):
        ids, n = batch["responses"][row].tolist(), int(lengths[row])
        assert EOS not in ids[: n - 1]
        assert (ids[n - 1] == EOS) == bool(ended[row])
    scored = Reward({"f": lambda completions: [1.0] * len(completions)}).compute_reward(batch)[
        "token_level_scores"
    ]
    assert scored.argmax(1).tolist() == (lengths - 1).tolist()
    empty = Reward({"f": lambda completions: [1.0]}).compute_reward(hand_batch([[0, 0]]))
    assert empty["token_level_scores"].tolist() == [[0, 0]]


def test_11_only_responses_without_eos_are_truncated_and_they_can_bootstrap(make_config) -> None:
    """verl 7823, miles PR 1827: EOS on the very last allowed token is an ending, not a cut."""
    trainer = Trainer(make_config(("credit.bootstrap_truncated", "true")))
    actor = trainer.roles.actor
    batch = actor.sample(trainer.dataloader.data.take(range(64), seed=1))
    last = batch["responses"].gather(1, batch["response_mask"].sum(1, keepdim=True) - 1).squeeze(1)
    assert torch.equal(batch["truncated"], last != EOS)
    torch.nn.init.ones_(trainer.roles.critic.model.head.bias)
    valued = trainer.roles.critic.compute_values(batch)
    assert torch.equal(valued["bootstrap"] != 0, batch["truncated"])


def test_12_kl_has_the_right_sign_and_k3_never_loses_its_gradient() -> None:
    """verl commit a65c915 and 6058 (gradient gone past the clamp).

    Trl 925 and 1161 ("negative KL" is no error).
    """
    for gap in (-30.0, -12.0, -3.0, 3.0, 12.0, 30.0):
        log_probs = torch.tensor([gap], requires_grad=True)
        kl = kl_penalty(log_probs, torch.zeros(1), "k3")
        kl.sum().backward()
        assert float(kl.detach()) >= 0
        assert float(log_probs.grad) * gap > 0  # descending it brings the policy back
    assert float(kl_penalty(torch.tensor(-0.05), torch.tensor(0.0), "k1")) < 0


def test_13_a_row_keeps_its_advantages_when_rows_are_picked() -> None:
    """verl 7956: advantages resampled without their trajectories."""
    batch = hand_batch(
        [[1, 1], [1, 1], [1, 1]], advantages=torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    )
    picked = batch.rows(torch.tensor([2, 0, 2]))
    for i, source in enumerate((2, 0, 2)):
        assert picked["advantages"][i].tolist() == batch["advantages"][source].tolist()
        assert picked["responses"][i].tolist() == batch["responses"][source].tolist()
        assert picked.info[i] == batch.info[source]


@pytest.mark.parametrize("size", ["14", "33", "1000"])
def test_14_the_first_ratio_is_exactly_one_whatever_the_batch_shape(make_config, size: str) -> None:
    """verl 6280 and 2305, trl 4772."""
    roles, batch = prepared(make_config(("actor.micro_batch_tokens", size)))
    metrics = roles.actor.update_actor(batch)
    assert (metrics["actor/approx_kl"], metrics["actor/ppo_kl"], metrics["actor/pg_clipfrac"]) == (
        0.0,
        0.0,
        0.0,
    )


def test_15_resume_keeps_data_order_beta_optimizer_and_schedule(make_config) -> None:
    """verl 3457 and 5725, slime 1761 and 1558, NeMo-RL PR 3171.

    Killed processes: tests/test_resume.py.
    """
    settings = [
        ("steps", "4"),
        ("credit.kl_target", "0.01"),
        ("credit.kl_horizon", "50"),
        ("actor.schedule", "linear"),
        ("actor.epochs", "2"),
    ]

    def reward(response_ids):
        return [len(r) / 6 for r in response_ids]

    def untimed(trainer):
        return [
            {k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))}
            for row in trainer.history()
        ]

    whole = Trainer(make_config(*settings, ("name", "whole")), reward=reward)
    whole.fit()
    first = Trainer(make_config(*settings, ("name", "parts")), reward=reward)
    first.fit(until=2)
    second = Trainer(make_config(*settings, ("name", "parts")), reward=reward, resume=True)
    assert second.step == 2
    second.fit()
    assert second.kl_coef == whole.kl_coef != 0.02
    steps = [row for row in untimed(second) if "actor/pg_loss" in row]
    assert steps == [row for row in untimed(whole) if "actor/pg_loss" in row]


def test_16_sampled_ids_are_kept_and_never_retokenised(make_config) -> None:
    """verl 6719 and 3960."""
    trainer = Trainer(make_config())
    batch = trainer.roles.actor.generate_sequences(trainer.dataloader.data.take(range(8), seed=0))
    width = batch["responses"].shape[1]
    assert torch.equal(batch["input_ids"][:, -width:], batch["responses"])
    assert "tokenizer" not in inspect.signature(Reward.__init__).parameters
    package = Path(telescope.__file__).parent
    for path in (
        "roles/actor.py",
        "roles/critic.py",
        "roles/reference.py",
        "roles/learner.py",
        "credit.py",
        "trainer.py",
    ):
        assert not re.search(r"\btokenizer\(", (package / path).read_text("utf-8"))


def test_17_recorded_kl_is_the_kl_not_the_shaped_reward() -> None:
    """slime PR 2114: a tensor changed in place."""
    batch = staged(
        [[1, 1]], scores=[[0.0, 1.0]], values=[[0.1, 0.2]], old=[[-0.1, -0.2]], ref=[[-0.3, -0.1]]
    )
    inputs = {name: batch[name].clone() for name in batch}
    out = compute_advantages(batch, CreditConfig.of(), kl_coef=0.5)
    assert out["kl"][0].tolist() == pytest.approx([0.2, -0.1])
    assert out["token_level_scores"][0].tolist() == [0.0, 1.0]
    for name, before in inputs.items():
        assert torch.equal(batch[name], before)


def test_18_gradients_are_clipped_and_the_value_head_is_scheduled(make_config) -> None:
    """TRL up to 1.12 (configured, never applied), NeMo-RL PR 2530 (head outside the schedule)."""
    roles, batch = prepared(
        make_config(("critic.max_grad_norm", "1e-4"), ("critic.warmup_steps", "2"))
    )
    learner = roles.critic.learner
    captured = {}
    original = learner.optimizer.step

    def step():
        captured["norm"] = math.sqrt(
            sum(
                float(p.grad.norm()) ** 2
                for p in roles.critic.model.parameters()
                if p.grad is not None
            )
        )
        captured["rates"] = {
            id(p): group["lr"] for group in learner.optimizer.param_groups for p in group["params"]
        }
        original()

    learner.optimizer.step = step
    roles.critic.update_critic(batch)
    assert captured["norm"] == pytest.approx(1e-4, rel=1e-2)
    assert captured["rates"][id(roles.critic.model.head.weight)] == pytest.approx(1e-3 / 2)


def test_19_adaptive_beta_stays_positive_and_survives_one_nan() -> None:
    """verl today: n_steps > 5·horizon makes β negative; one NaN KL makes it NaN for good."""
    beta = 0.1
    for kl in (0.0, NAN, 0.0, math.inf, 0.0):
        beta = adapt_kl_coef(beta, kl, target=0.1, horizon=10, n_steps=1000)
        assert 0 < beta < 1


def test_20_every_setting_is_read_somewhere() -> None:
    """verl's `clip_ratio`, sapo and geo_mean aggregation: options that are accepted and ignored.

    The settings of policy losses go to them by name: tests/roles/test_settings_reach_the_loss.py.
    """
    package = Path(telescope.__file__).parent
    files = [path for path in package.rglob("*.py") if path.parent.name != "config"]
    source = "\n".join(path.read_text("utf-8") for path in files)
    sections = (package / "config" / "sections.py").read_text("utf-8")
    source += sections.split("def run_dir")[1][:200]
    source += sections.split("def aggregates")[1][:200]
    of_losses = {f"actor.{name}" for choice in CHOICES[1:2] for name in choice.owners()}
    for key, *_ in fields():
        if key not in of_losses:
            assert re.search(rf"\.{key.split('.')[-1]}\b", source), f"{key} is never read"


def test_20b_clip_bounds_apply_to_the_ratio_they_name() -> None:
    """verl's rejection k1 tested the inverse ratio."""
    old, advantage, mask = torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), torch.ones(1, 2)
    terms = clipped_policy_loss(
        torch.log(torch.tensor([[2.0, 0.5]])), old, advantage, mask, clip_low=0.1, clip_high=0.6
    )
    assert terms.ratio[0].tolist() == pytest.approx([2.0, 0.5])
    assert terms.loss[0].tolist() == pytest.approx([-1.6, 0.9])
    assert terms.clipped[0].tolist() == [True, True]


def test_prompts_are_tokenised_once_and_their_ids_are_the_batch(make_config) -> None:
    trainer = Trainer(make_config())
    data: PromptSet = trainer.dataloader.data
    batch = trainer.roles.actor.sample(data.take([0, 1], seed=0))
    for row in range(2):
        real = batch["prompts"][row][
            batch["attention_mask"][row, : batch["prompts"].shape[1]].bool()
        ]
        assert real.tolist() == data.ids[row]
