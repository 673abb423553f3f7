"""Every check of metrics: one run in which it fires, and one like it in which it does not."""

from __future__ import annotations

import math

import pytest

from telescope.doctor.check import CHECKS
from telescope.doctor.curves import Curves
from telescope.doctor.examine import curve_findings
from telescope.doctor.finding import Finding
from tests.doctor.made import curves, healthy_series, ramp, with_accuracy

FLAT = [0.5, 0.51] * 15
"""A score that stands still over 30 steps."""
RISING = ramp(0.2, 0.8, 30)


def score(values: list[float], **others: list[float]) -> dict[str, list[float]]:
    return {"reward/score_mean": values} | {
        name.replace("__", "/"): other for name, other in others.items()
    }


def _hot(sampled: float) -> Curves:
    """Sampling at temperature 2: greedy answers score 0.9."""
    made = curves(score(FLAT), rollout__temperature=2.0)
    for step in (0, 10, 20, 30):
        made.add(step, {"eval/greedy_score": 0.9, "eval/sampled_score": sampled})
    return made


def _held_out(last: float, trained: list[float] = RISING) -> Curves:
    made = curves(score(trained))
    made.add(0, {"eval/sampled_score": 0.2})
    made.add(30, {"eval/sampled_score": last})
    return made


FIRES: dict[str, tuple[Curves, int]] = {
    # id -> a run, and the step since which it is found
    "collapse": (curves(score(FLAT, actor__entropy=[0.4] * 5 + [0.02] * 25)), 8),
    "entropy_explosion": (
        curves(score(RISING, actor__entropy=[0.5] * 5 + [3.0] * 25), actor__entropy_coef=0.1),
        6,
    ),
    "kl_runaway": (curves({"reward/kl": [0.1] * 5 + [2.0] * 10}), 8),
    "kl_negative": (curves({"reward/kl": [-0.1] * 20}), 1),
    "kl_too_strong": (curves(score(FLAT, reward__kl=[0.0005] * 30), credit__kl_coef=2.0), 1),
    "not_finite": (curves({"actor/grad_norm": [1.0, 1.0, None]}), 3),
    "lr_too_high": (curves({"actor/approx_kl": [0.01, 0.01, 0.2, 0.2, 0.2]}), 2),
    "clip_too_tight": (
        curves({"actor/pg_clipfrac": [0.6] * 10, "actor/approx_kl": [0.001] * 10}),
        1,
    ),
    "lr_too_low": (curves(score(FLAT, actor__approx_kl=[1e-9] * 30, reward__kl=[1e-6] * 30)), 1),
    "no_gradient": (curves({"actor/grad_norm": [1.0] + [0.0] * 6}), 2),
    "grad_spike": (curves({"actor/grad_norm": [1.0] * 10 + [50.0, 1.0, 60.0, 1.0, 70.0]}), 11),
    "constant_reward": (curves(score([0.25] * 10)), 1),
    "saturated_reward": (curves(score([0.5] + [1.0] * 25)), 2),
    "reward_scale": (curves({"credit/advantage_std": [30.0] * 10}), 1),
    "partial_credit": (with_accuracy(curves(score(RISING)), {0: 0.004, 30: 0.004}), 5),
    "over_optimisation": (
        with_accuracy(curves(score(RISING)), {0: 0.1, 10: 0.5, 20: 0.2, 30: 0.1}),
        10,
    ),
    "overfitting": (_held_out(0.3), 30),
    "mostly_truncated": (curves({"response/truncated": [0.9] * 10}), 1),
    "length_drift": (curves(score(FLAT, response__length_mean=[100.0] * 5 + [200.0] * 25)), 8),
    "flat_groups": (curves({"reward/flat_groups": [0.95] * 10}), 1),
    "critic_useless": (
        curves({"critic/explained_variance": [-0.1] * 40, "critic/vf_loss": [0.1] * 40}),
        30,
    ),
    "value_scale": (
        curves({"critic/explained_variance": [-5.0] * 15, "critic/vf_loss": [9.0] * 15}),
        1,
    ),
    "value_clip_binds": (curves({"critic/vf_clipfrac": [0.6] * 15}), 1),
    "sampler_mismatch": (curves({"rollout/logprob_diff": [0.3] * 10}), 1),
    "stale_samples": (curves({"rollout/staleness": [5.0] * 10}), 1),
    "failing_tools": (
        curves({"response/tool_calls": [1.0] * 10, "response/tool_failures": [0.9] * 10}),
        1,
    ),
    "tools_unused": (curves({"response/tool_calls": [0.0] * 12}), 1),
    "other_reference": (curves({"reward/kl": [3.0] * 3}), 1),
    "ratio_stuck": (
        curves({"actor/approx_kl": [0.0] * 15, "reward/kl": [0.1] * 15}, actor__minibatches=2),
        1,
    ),
    "reference_moves": (curves({"actor/approx_kl": [0.01] * 15, "reward/kl": [0.0] * 15}), 1),
    "part_constant": (curves(score(FLAT, reward__sum=FLAT, reward__form=[0.0] * 30)), 1),
    "score_clipped": (curves({"reward/clipped": [0.8] * 10}, reward__clip=0.01), 1),
    "label_mismatch": (_held_out(0.95, FLAT), 30),
    "hot_sampling": (_hot(0.3), 10),
    "credit_fades": (curves({"response/length_mean": [200.0] * 5}, credit__gamma=0.95), 1),
    "reward_falls": (curves(score(ramp(0.2, 0.8, 20) + [0.1] * 20)), 25),
    "no_progress": (curves(score([0.5, 0.51] * 35)), 1),
}

HEALTHY: dict[str, Curves] = {
    # id -> a run that looks alike and is not ill
    "collapse": curves(score(RISING, actor__entropy=[0.4] * 5 + [0.02] * 25)),
    "entropy_explosion": curves({"actor/entropy": [0.5] * 5 + [0.7] * 25}),
    "kl_runaway": curves(score(RISING, reward__kl=ramp(0.0, 0.5, 30))),
    "kl_negative": curves({"reward/kl": [-0.1, 0.1] * 10}),
    "kl_too_strong": curves(score(RISING, reward__kl=[0.0005] * 30), credit__kl_coef=2.0),
    "not_finite": curves({"actor/grad_norm": [1.0, 1.0, 200.0]}),
    "lr_too_high": curves({"actor/approx_kl": [0.01, 0.2, 0.01, 0.01, 0.2]}),
    "clip_too_tight": curves({"actor/pg_clipfrac": [0.6] * 10, "actor/approx_kl": [0.1] * 10}),
    "lr_too_low": curves(score(RISING, actor__approx_kl=[1e-9] * 30)),
    "no_gradient": curves(score([1.0] * 12, actor__grad_norm=[0.0] * 12)),
    "grad_spike": curves({"actor/grad_norm": [0.1] * 10 + [2.0, 0.1, 2.0, 0.1, 2.0]}),
    "constant_reward": curves(score([1.0] * 12)),
    "saturated_reward": curves(score([0.99, 1.0] * 12)),
    "reward_scale": curves({"credit/advantage_std": [1.5] * 10}),
    "partial_credit": with_accuracy(curves(score(RISING)), {0: 0.004, 30: 0.5}),
    "over_optimisation": with_accuracy(
        curves(score(RISING)), {0: 0.1, 10: 0.5, 20: 0.48, 30: 0.52}
    ),
    "overfitting": _held_out(0.7),
    "mostly_truncated": curves({"response/truncated": ramp(0.4, 0.0, 10)}),
    "length_drift": curves(score(RISING, response__length_mean=ramp(100, 250, 30))),
    "flat_groups": curves({"reward/flat_groups": [0.5] * 10}),
    "critic_useless": curves(
        {"critic/explained_variance": [-0.1] * 10 + [0.2] * 30, "critic/vf_loss": [0.1] * 40}
    ),
    "value_scale": curves(
        {"critic/explained_variance": [-5.0, -2.0, -0.5] + [0.1] * 12, "critic/vf_loss": [9.0] * 15}
    ),
    "value_clip_binds": curves({"critic/vf_clipfrac": [0.6] * 3 + [0.1] * 12}),
    "sampler_mismatch": curves({"rollout/logprob_diff": [0.005] * 10}),
    "stale_samples": curves({"rollout/staleness": [1.0] * 10}),
    "failing_tools": curves(
        {"response/tool_calls": [1.0] * 10, "response/tool_failures": [0.1] * 10}
    ),
    "tools_unused": curves({"response/tool_calls": [0.0] * 5 + [0.5] * 12}),
    "other_reference": curves({"reward/kl": [0.0, 3.0, 3.0]}),
    "ratio_stuck": curves(
        {"actor/approx_kl": [0.0] * 15, "reward/kl": [0.1] * 15}, actor__minibatches=1
    ),
    "reference_moves": curves({"actor/approx_kl": [0.01] * 15, "reward/kl": ramp(0.0, 0.1, 15)}),
    "part_constant": curves(score(FLAT, reward__sum=FLAT, reward__form=[0.0] * 5 + [0.1] * 25)),
    "score_clipped": curves({"reward/clipped": [0.1] * 10}, reward__clip=5.0),
    "label_mismatch": _held_out(0.85),
    "hot_sampling": _hot(0.8),
    "credit_fades": curves({"response/length_mean": [7.0] * 5}, credit__gamma=0.95),
    "reward_falls": curves(score(ramp(0.2, 0.8, 20) + [0.75] * 20)),
    "no_progress": curves(score(ramp(0.3, 0.6, 70))),
}


def found(run: Curves, id: str) -> Finding | None:
    return next((finding for finding in curve_findings(run) if finding.id == id), None)


def seen(run: Curves, id: str) -> Finding:
    finding = found(run, id)
    assert finding is not None
    return finding


@pytest.mark.parametrize("id", FIRES)
def test_it_is_found_where_it_is(id: str) -> None:
    run, since = FIRES[id]
    finding = seen(run, id)
    assert finding.since == since
    assert 0 < finding.confidence <= 1


@pytest.mark.parametrize("id", HEALTHY)
def test_it_is_not_found_where_it_is_not(id: str) -> None:
    assert found(HEALTHY[id], id) is None


def test_every_check_of_metrics_has_both_cases() -> None:
    checks = {id for id, check in CHECKS.items() if check.of_curves is not None}
    assert set(FIRES) == checks
    assert set(HEALTHY) == checks


def test_a_healthy_run_has_no_finding_at_any_length() -> None:
    series = healthy_series(120)
    for steps in range(1, 121, 7):
        part = curves({name: values[:steps] for name, values in series.items()})
        assert [each.id for each in curve_findings(part) if each.severity != "note"] == []


def test_entropy_that_falls_while_the_score_rises_to_one_is_no_alarm() -> None:
    entropy = [0.34 * 0.9**i for i in range(60)]  # to 0.0007
    rise = [min(1.0, 0.5 + 0.05 * i) for i in range(60)]
    found = curve_findings(curves(score(rise, actor__entropy=entropy)))
    assert [each.id for each in found] == ["saturated_reward"]
    assert found[0].severity == "note"


def test_every_sentence_has_its_numbers() -> None:
    for id, (run, _) in FIRES.items():
        finding = seen(run, id)
        for lang in ("en", "zh"):
            for part in ("what", "why", "remedy"):
                text = finding.said(part, lang)  # type: ignore[arg-type]
                assert text
                assert "{" not in text
                assert "nan" not in text.replace("NaN", "")


@pytest.mark.parametrize(("estimator", "is_found"), [("gae", False), ("grpo", True)])
def test_equal_scores_matter_where_the_answers_of_a_group_are_compared(
    estimator: str, is_found: bool
) -> None:
    run = curves({"reward/flat_groups": [1.0] * 10}, credit__estimator=estimator)
    assert (found(run, "flat_groups") is not None) == is_found


def test_an_explosion_with_a_bonus_names_the_bonus() -> None:
    finding = seen(FIRES["entropy_explosion"][0], "entropy_explosion")
    assert "actor.entropy_coef = 0.1" in finding.said("what", "en")
    assert finding.change == {"actor.entropy_coef": 0.0}


@pytest.mark.parametrize(
    ("settings", "since"),
    [
        ({"actor__entropy_coef": 1.0, "credit__estimator": "gae"}, 1),
        ({"actor__entropy_coef": 0.01, "credit__estimator": "gae"}, 6),
        ({"actor__entropy_coef": 0.05, "credit__estimator": "gae", "credit__whiten": False}, 1),
        ({"actor__entropy_coef": 0.05, "credit__estimator": "rloo"}, 1),
        ({"actor__entropy_coef": 0.01, "credit__estimator": "rloo"}, 6),
        ({"actor__entropy_coef": 1.0}, 6),
    ],
)
def test_a_bonus_that_outweighs_the_advantages_is_there_from_the_start(
    settings: dict[str, float | str | bool], since: int
) -> None:
    """Whitened advantages have σ = 1, others here 0.07; the bonus pays coef × 1.5 nats."""
    series = {"actor/entropy": [1.5] * 5 + [9.0] * 25, "credit/advantage_std": [0.07] * 30}
    assert seen(curves(series, **settings), "entropy_explosion").since == since


def test_entropy_that_is_low_from_the_start_is_a_cold_sampler() -> None:
    run = curves(score(FLAT, actor__entropy=[0.04] * 30), rollout__temperature=0.1)
    finding = seen(run, "collapse")
    assert finding.severity == "warning"
    assert finding.change == {"rollout.temperature": 1.0}
    solved = curves(score([1.0] * 30, actor__entropy=[0.04] * 30), rollout__temperature=0.1)
    assert found(solved, "collapse") is None


def test_large_advantages_with_small_scores_are_not_the_reward() -> None:
    spread = {"credit__advantage_std": [40.0] * 30}
    assert found(curves(score(FLAT, **spread)), "reward_scale") is None
    assert found(curves(score([50.0, 51.0] * 15, **spread)), "reward_scale") is not None


def test_a_head_of_zeros_that_swings_needs_a_lower_rate() -> None:
    series = {"critic/explained_variance": [-5.0] * 15, "critic/vf_loss": [9.0] * 15}
    zero = curves(series, critic__head_init="zero", critic__lr=1.0)
    normal = curves(series, critic__head_init="normal", critic__lr=1.0)
    tried = [found(run, "value_scale") for run in (zero, normal)]
    changes = [finding.change for finding in tried if finding is not None]
    assert changes == [{"critic.lr": 0.1}, {"critic.head_init": "zero", "critic_warmup": 10}]


FAR = [-142000.0, -9000.0, -1900.0, -640.0, -210.0, -77.0, -31.0, -13.0]
"""Explained variance of a value head that starts at random weights."""


def _random_head(variance: list[float], loss: float = 0.5, **settings: int) -> Curves:
    series = {"critic__explained_variance": variance, "critic__vf_loss": [loss] * len(variance)}
    return curves(score([0.2, 0.3] * len(variance), **series), **settings)


def test_eight_steps_show_a_value_head_that_is_far_off() -> None:
    finding = seen(_random_head(FAR), "value_scale")
    assert (finding.severity, finding.since) == ("serious", 1)
    said = finding.said("what", "en")
    assert said.endswith("explained variance is -1.4e+05 at step 1 and -13 at step 8.")
    assert finding.change == {"critic.head_init": "zero", "critic_warmup": 10}


def test_a_value_head_that_was_far_off_and_has_learned_is_a_warning() -> None:
    finding = seen(_random_head([*FAR[:5], -0.5, 0.0, 0.1, 0.1, 0.2]), "value_scale")
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    "run",
    [
        _random_head([0.0, 0.02, -0.02, -0.04, -0.02, -0.01, 0.0, 0.01]),  # a head of zeros
        _random_head([-9.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0]),
        _random_head(FAR[:4]),
        _random_head([*FAR[:4], 0.0, *FAR[:3]]),
        _random_head(FAR, critic_warmup=5),  # the policy is trained from step 6 on
        _random_head(FAR, loss=0.001),  # V is off by 0.04: the returns are nearly all equal
    ],
)
def test_a_critic_that_may_still_learn_is_no_badly_scaled_head(run: Curves) -> None:
    assert found(run, "value_scale") is None


def test_a_kl_penalty_larger_than_the_score_is_too_strong() -> None:
    series = score(FLAT, reward__kl=[0.05] * 30, response__length_mean=[7.0] * 30)
    finding = seen(curves(series, credit__kl_coef=100.0), "kl_too_strong")
    assert finding.numbers["taken"] == pytest.approx(35)  # 100 × 0.05 × 7
    assert found(curves(series, credit__kl_coef=0.5), "kl_too_strong") is None


def test_advantages_made_of_a_strong_kl_penalty() -> None:
    series = score(FLAT, reward__kl=[0.05] * 30, credit__advantage_std=[2.0] * 30)
    finding = seen(curves(series, credit__kl_coef=5.0), "kl_too_strong")
    assert finding.variant == "noise"
    assert finding.numbers["spread"] == 2.0
    assert found(curves(series, credit__kl_coef=0.05), "kl_too_strong") is None


@pytest.mark.parametrize(
    ("kl", "path", "severity"),
    [(0.02, None, "serious"), (0.2, "sft", "warning"), (2.0, "sft", "serious"), (1e-4, None, None)],
)
def test_a_reference_that_is_not_the_start(
    kl: float, path: str | None, severity: str | None
) -> None:
    run = curves({"reward/kl": [kl] * 3}, model__path="m", model__reference_path=path)
    finding = found(run, "other_reference")
    assert (finding and finding.severity) == severity


def test_a_critic_that_warms_up_is_no_policy_that_stands_still() -> None:
    series = score(FLAT, reward__kl=[0.0] * 30)
    assert found(curves(series, critic_warmup=25, steps=200), "lr_too_low") is None
    never = seen(curves(series, critic_warmup=40, steps=40), "lr_too_low")
    assert never.change == {"critic_warmup": 2}


def test_one_update_per_step_is_told_by_the_kl_to_the_reference() -> None:
    run = curves({"reward/kl": [0.0, 0.1, 2.0, 4.0, 6.0, 6.0, 6.0], "actor/approx_kl": [0.0] * 7})
    finding = seen(run, "lr_too_high")
    assert finding.variant == "jump"
    assert "grows to 6 nats" in finding.said("what", "en")


@pytest.mark.parametrize(
    ("right_cut", "right_finished", "severity"),
    [(0.5, 0.5, "note"), (0.4, 0.6, "warning"), (0.0, 0.6, "serious"), (0.02, 0.02, "serious")],
)
def test_metrics_tell_whether_truncation_costs_answers(
    right_cut: float, right_finished: float, severity: str
) -> None:
    """20 steps of 100 responses; 80 are cut off."""
    shares = {"response/right_truncated": right_cut, "response/right_finished": right_finished}
    series = {"response/truncated": 0.8, **shares}
    run = curves({name: [share] * 20 for name, share in series.items()}, rollout__batch_size=100)
    finding = seen(run, "mostly_truncated")
    assert finding.severity == severity
    assert ("costs them little" in finding.said("what", "en")) == (severity != "serious")


def test_truncation_that_has_ended_stays_a_note() -> None:
    series = {"response/truncated": [0.9] * 10 + [0.0] * 10}
    right = {"response/right_truncated": [0.4] * 20, "response/right_finished": [0.6] * 20}
    run = curves(series | right, rollout__batch_size=100)
    assert seen(run, "mostly_truncated").severity == "note"


def test_few_held_out_answers_do_not_tell_a_small_rise_from_none() -> None:
    """Of 64 answers half are right: accuracy may be 0.17 higher by chance."""
    series = score(ramp(0.75, 0.93, 30))
    few = with_accuracy(curves(series, eval__prompts=64), {0: 0.5, 30: 0.52})
    assert found(few, "partial_credit") is None
    many = with_accuracy(curves(series, eval__prompts=4096), {0: 0.5, 30: 0.52})
    assert found(many, "partial_credit") is not None


def test_a_score_that_is_never_above_0_may_have_the_wrong_sign() -> None:
    run = with_accuracy(curves(score(ramp(-0.5, -0.05, 30))), {0: 0.0, 30: 0.0})
    finding = seen(run, "partial_credit")
    assert finding.variant == "negative"


def test_a_strong_kl_loss_holds_the_policy_though_its_estimate_is_noisy() -> None:
    held = score(FLAT, reward__kl=[0.02, -0.02, 0.01] * 10)
    assert found(curves(held, actor__kl_loss_coef=20.0), "kl_too_strong") is not None
    assert found(curves(held, actor__kl_loss_coef=0.02), "kl_too_strong") is None


def test_shaping_that_pays_for_a_falling_score() -> None:
    falls = score(ramp(0.5, 0.1, 30), reward__shaped_mean=ramp(-8.0, -4.0, 30))
    finding = seen(curves(falls), "partial_credit")
    assert finding.variant == "shaped"
    both = score(ramp(0.5, 0.1, 30), reward__shaped_mean=ramp(-4.0, -8.0, 30))
    assert found(curves(both), "partial_credit") is None


def test_top_scores_from_the_first_step_on_are_a_warning() -> None:
    finding = seen(curves(score([1.0] * 20)), "saturated_reward")
    assert finding.variant == "start"
    late = seen(curves(score([0.5] * 5 + [1.0] * 20)), "saturated_reward")
    assert late.severity == "note"


def test_held_out_prompts_of_another_kind_are_no_exploited_credit() -> None:
    run = with_accuracy(curves(score(ramp(0.5, 0.85, 30))), {0: 0.0, 30: 0.0})
    for step in (0, 30):
        run.add(step, {"eval/sampled_score": 0.0})
    assert found(run, "partial_credit") is None
    finding = seen(run, "overfitting")
    assert finding.variant == "kind"


def test_a_difference_that_grows_is_a_stale_sampler_not_a_mismatch() -> None:
    run = curves({"rollout/logprob_diff": ramp(0.0, 0.5, 30)})
    assert [each.id for each in curve_findings(run)] == ["stale_samples"]


@pytest.mark.parametrize(
    ("rate", "norm", "change"),
    [
        (1e-4, 0.5, {"actor.lr": 0.1}),  # a thousand times as much, at most
        (1e-7, 0.5, {"actor.warmup_steps": 0}),
        (1e-4, 500.0, {"actor.max_grad_norm": 1.0}),
    ],
)
def test_a_policy_that_stands_still_names_what_holds_it(
    rate: float, norm: float, change: dict[str, float]
) -> None:
    series = {"actor__approx_kl": [1e-12] * 30, "actor__lr": [rate] * 30}
    run = curves(
        score(FLAT, **series, actor__grad_norm=[norm] * 30),
        actor__lr=1e-4,
        actor__max_grad_norm=1.0,
    )
    finding = seen(run, "lr_too_low")
    assert finding.change == change


def test_what_is_not_known_is_a_question_mark() -> None:
    finding = seen(FIRES["lr_too_high"][0], "lr_too_high")
    assert math.isnan(finding.numbers["lr"])
    assert "actor.lr = ?" in finding.said("what", "en")


def test_a_schedule_that_is_over_too_early_is_found_though_the_score_rose() -> None:
    rates = [1e-4] * 8 + [0.0] * 22
    finding = seen(curves(score(RISING, actor__lr=rates)), "lr_too_low")
    assert finding.since == 9
    assert finding.variant == "ended"


def test_a_schedule_that_ends_with_the_run_is_no_finding() -> None:
    linear = curves(score(RISING, actor__lr=ramp(1e-4, 0.0, 30)))
    warming = curves(score(RISING, actor__lr=[0.0] * 12 + [1e-4] * 18))
    assert found(linear, "lr_too_low") is None
    assert found(warming, "lr_too_low") is None


def test_a_difference_of_more_than_a_nat_is_another_answer() -> None:
    finding = seen(curves({"rollout/logprob_diff": [3.0] * 10}), "sampler_mismatch")
    assert "not sampled from these prompts" in finding.said("what", "en")


ROUNDED = [5e-4] * 30
"""Approximate KL of updates that round weights to bfloat16."""
NOISE = [0.0, 8e-4, -6e-4, 3e-4, -9e-4, 5e-4] * 5
UNEVEN = ([1.2e-3] * 4 + [-1.2e-3] * 4 + [0.0, 0.0]) * 3
"""Its running median is not small everywhere."""


ONE_UPDATE = [each + 4e-4 for each in NOISE]
"""Surely above 0, and no more than one update makes."""


@pytest.mark.parametrize("kl", [NOISE, UNEVEN, ONE_UPDATE])
def test_updates_that_do_not_add_up_are_rounding(kl: list[float]) -> None:
    series = score(FLAT, actor__approx_kl=ROUNDED, reward__kl=kl)
    finding = seen(curves(series, actor__lr=1e-8), "lr_too_low")
    assert finding.variant == "rounding"
    assert finding.since == 1
    assert finding.change == {"actor.lr": 1e-7}


@pytest.mark.parametrize(
    "kl",
    [
        [each + 6e-4 for each in NOISE],  # more than one update makes
        [a + b for a, b in zip(NOISE, ramp(0.0, 9e-4, 30), strict=True)],
        [each * 20 + 0.01 for each in NOISE],
        [each * 20 for each in NOISE],  # too much noise to tell
    ],
)
def test_a_slow_policy_leaves_the_reference(kl: list[float]) -> None:
    assert found(curves(score(FLAT, actor__approx_kl=ROUNDED, reward__kl=kl)), "lr_too_low") is None


def test_whether_a_policy_learns_to_stop_is_seen_only_if_it_moves() -> None:
    cut = {"response__truncated": [0.7] * 30}
    still = {"actor__approx_kl": [1e-9] * 30, "reward__kl": [1e-6] * 30}
    waits = seen(curves(score(FLAT, **cut, **still)), "mostly_truncated")
    assert (waits.severity, waits.variant) == ("note", "untrained")
    moves = seen(curves(score(FLAT, **cut, actor__approx_kl=[0.01] * 30)), "mostly_truncated")
    assert moves.severity == "serious"
    ended = score(FLAT, **cut, actor__lr=[1e-4] * 15 + [0.0] * 15)
    assert seen(curves(ended), "mostly_truncated").severity == "serious"
    unpaid = seen(curves(score([0.0] * 30, **cut, **still)), "mostly_truncated")
    assert unpaid.severity == "serious"


def test_truncation_that_ended_and_comes_back_is_dated_from_its_return() -> None:
    """Then an explosion of entropy at step 25 explains it."""
    cut = [0.7] * 12 + [0.1] * 16 + [0.9] * 10
    run = curves({"response/truncated": cut})
    assert seen(run, "mostly_truncated").since == 31
    short = curves({"response/truncated": cut[:32]})
    assert seen(short, "mostly_truncated").severity == "note"
    dips = curves({"response/truncated": ([0.7] * 8 + [0.3] * 4) * 3 + [0.7] * 8})
    assert seen(dips, "mostly_truncated").since == 1
