"""Causes come before what they lead to, and the worst comes first."""

from __future__ import annotations

import pytest

from telescope.doctor.check import CHECKS, FAMILIES, REVIEWS, WITNESSES
from telescope.doctor.examine import curve_findings
from telescope.doctor.finding import Finding, Severity
from telescope.doctor.order import explains, links, ordered, root_causes
from telescope.doctor.words import PARTS, texts
from tests.doctor.made import curves


def finding(id: str, severity: Severity, since: int) -> Finding:
    return Finding(id, severity, since, numbers={}, confidence=0.8)


def ids(found: list[Finding]) -> list[str]:
    return [each.id for each in found]


def test_a_collapse_by_a_huge_learning_rate_is_reported_as_the_learning_rate() -> None:
    run = curves(
        {
            "actor/approx_kl": [0.5] * 5 + [0.0] * 25,
            "actor/entropy": [0.4] * 3 + [0.001] * 27,
            "reward/score_mean": [0.5, 0.4, 0.3] + [0.1, 0.11] * 13,
            "reward/kl": [0.0, 0.5] + [3.0] * 28,
        },
        actor__lr=0.01,
    )
    found = ordered(curve_findings(run))
    assert found[0].id == "lr_too_high"
    assert found[0].caused_by == ()
    assert set(ids(found)) == {"lr_too_high", "kl_runaway", "collapse", "reward_falls"}
    assert all("lr_too_high" in each.caused_by for each in found[1:])


def test_a_cause_is_as_serious_as_what_it_leads_to() -> None:
    found = ordered([finding("collapse", "serious", 10), finding("whitening_flips", "warning", 3)])
    assert ids(found) == ["whitening_flips", "collapse"]
    assert found[0].severity == "serious"


def test_the_root_of_a_chain_is_named_as_its_cause() -> None:
    given = [("lr_too_high", 1), ("kl_runaway", 3), ("collapse", 5), ("reward_falls", 7)]
    found = ordered([finding(id, "serious", since) for id, since in given])
    by_id = {each.id: each for each in found}
    assert set(by_id["collapse"].caused_by) == {"lr_too_high", "kl_runaway"}
    assert root_causes(by_id["collapse"], found) == ["lr_too_high"]
    assert root_causes(by_id["lr_too_high"], found) == []


def test_a_circle_of_causes_is_cut_where_the_cause_is_latest() -> None:
    """RLOO that explodes: flat groups let the bonus win, noise earns 0, and so groups are flat."""
    given = [("flat_groups", 1), ("entropy_explosion", 4), ("constant_reward", 6)]
    for order in (given, given[::-1]):
        found = ordered([finding(id, "serious", since) for id, since in order])
        assert ids(found)[0] == "flat_groups"
        causes = {each.id: each.caused_by for each in found}
        assert causes["flat_groups"] == ()
        assert causes["entropy_explosion"] == ("flat_groups",)
        assert "entropy_explosion" in causes["constant_reward"]


def test_what_began_later_is_no_cause() -> None:
    found = ordered([finding("collapse", "serious", 10), finding("lr_too_high", "serious", 30)])
    assert all(each.caused_by == () for each in found)


def test_severity_orders_what_has_no_cause() -> None:
    found = ordered(
        [
            finding("saturated_reward", "note", 1),
            finding("critic_useless", "warning", 1),
            finding("constant_reward", "serious", 20),
        ]
    )
    assert ids(found) == ["constant_reward", "critic_useless", "saturated_reward"]


def test_of_two_that_explain_each_other_the_earlier_is_the_cause() -> None:
    early = ordered([finding("length_drift", "warning", 3), finding("looping", "warning", 9)])
    assert early[1].id == "looping"
    assert early[1].caused_by == ("length_drift",)
    late = ordered([finding("length_drift", "warning", 9), finding("looping", "warning", 3)])
    assert late[0].id == "looping"
    assert late[0].caused_by == ()


@pytest.mark.parametrize("cause", ["entropy_explosion", "collapse", "kl_runaway"])
@pytest.mark.parametrize("consequence", ["constant_reward", "flat_groups"])
def test_a_policy_that_became_useless_earns_the_same_everywhere(
    cause: str, consequence: str
) -> None:
    after = ordered([finding(cause, "serious", 4), finding(consequence, "serious", 6)])
    assert ids(after) == [cause, consequence]
    assert after[1].caused_by == (cause,)


@pytest.mark.parametrize("consequence", ["flat_groups", "no_gradient"])
def test_a_prompt_that_is_learned_by_heart_leaves_nothing_to_compare(consequence: str) -> None:
    found = [finding(consequence, "serious", 20), finding("repeated_data", "warning", 1)]
    assert ids(ordered(found)) == ["repeated_data", consequence]


@pytest.mark.parametrize("consequence", ["lr_too_high", "value_scale"])
def test_a_constant_reward_leaves_only_noise_to_train_on(consequence: str) -> None:
    after = ordered([finding(consequence, "serious", 3), finding("constant_reward", "serious", 1)])
    assert ids(after) == ["constant_reward", consequence]
    assert after[1].caused_by == ("constant_reward",)


def test_a_reference_that_moves_does_not_show_how_far_the_policy_went() -> None:
    found = [finding("lr_too_low", "warning", 1), finding("reference_moves", "serious", 1)]
    assert ordered(found)[1].caused_by == ("reference_moves",)


def test_a_bonus_that_rules_from_the_start_is_why_updates_are_large() -> None:
    series = {
        "actor/entropy": [1.7, 2.2, 3.2, 5.5, 7.4, 9.2] + [10.5] * 24,
        "actor/approx_kl": [0.001, 0.013, 0.098, 0.17, 0.12, 0.2] + [0.01] * 24,
    }
    settings = {"credit__estimator": "gae", "actor__lr": 1e-4}
    large = ordered(curve_findings(curves(series, **settings, actor__entropy_coef=1.0)))
    assert ids(large) == ["entropy_explosion", "lr_too_high"]
    small = ordered(curve_findings(curves(series, **settings, actor__entropy_coef=0.01)))
    assert ids(small) == ["lr_too_high", "entropy_explosion"]


def test_an_outcome_follows_from_anything() -> None:
    assert explains("failing_tools", "reward_falls")
    assert not explains("no_progress", "reward_falls")


def test_what_a_check_explains_exists() -> None:
    for cause, consequence in links():
        assert cause != consequence
        assert {cause, consequence} <= set(CHECKS)
    assert all(check.family in FAMILIES for check in CHECKS.values())
    assert set(WITNESSES) | set(REVIEWS) <= set(CHECKS)


def test_every_finding_has_all_words_in_both_languages() -> None:
    assert set(texts()) - {"ui"} == set(CHECKS)
    assert all(set(label) == {"en", "zh"} for label in texts()["ui"].values())
    for id in CHECKS:
        for part in PARTS:
            said = texts()[id][part]
            assert said["en"] and said["zh"], (id, part)  # noqa: PT018
            assert any("一" <= sign <= "鿿" for sign in said["zh"]) or "{said_zh}" in said["zh"]


def test_settings_of_remedies_exist() -> None:
    from telescope.config import fields

    known = {key for key, *_ in fields()} | {"critic.clip_value", "credit.lam"}
    for check in CHECKS.values():
        assert set(check.settings) <= known, check.id
