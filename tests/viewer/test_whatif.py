"""What-ifs: equal to what a run with those settings would really have computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from telescope.algorithms import POLICY_LOSSES
from telescope.algorithms.definitions import ESTIMATORS
from telescope.errors import TelescopeError
from telescope.explain.settings import Settings
from telescope.ledger.reader import sample_of as recorded_sample
from telescope.viewer.delta_weights import delta_weights
from telescope.viewer.offers import loss_offers, offers
from telescope.viewer.recorded import RecordedStep
from telescope.viewer.whatif import (
    WhatIf,
    read_whatif,
    recompute,
    sample_of,
    token_terms,
    tracer_of,
)
from tests.viewer.fake import lesson
from tests.viewer.real_step import MASKS, credited, flat, real_batch, step_of, table_of

OTHERS: list[dict[str, Any]] = [
    {"estimator": "gae", "lam": 0.8, "gamma": 0.9},
    {"estimator": "gae", "lam_alpha": 0.4},
    {"estimator": "gae", "lam": 0.7, "lam_critic": 1.0},
    {"estimator": "gae", "lam_alpha": 0.3, "lam_critic": 0.9, "gamma": 0.97},
    {"estimator": "gae", "lam": 0.0},
    {"estimator": "gae", "lam": 1.0},
    {"estimator": "monte_carlo", "gamma": 0.9},
    {"estimator": "td0", "gamma": 0.9},
    {"estimator": "n_step", "n": 2, "gamma": 0.9},
    {"estimator": "n_step", "n": 50},
    {"estimator": "grpo"},
    {"estimator": "dr_grpo"},
    {"estimator": "rloo"},
    {"estimator": "reinforce++", "gamma": 0.95},
    {"estimator": "reinforce++_baseline"},
    {"estimator": "opo"},
    {"estimator": "grpo_passk"},
    {"estimator": "maxrl"},
    {"estimator": "grpo", "leave_one_out": True},
    {"estimator": "gdpo"},
    {"estimator": "remax", "gamma": 0.9},
    {"estimator": "optimal_token_baseline"},
    {"estimator": "uniform"},
    {"estimator": "last_token", "last_k": 2},
    {"estimator": "attention"},
    {"estimator": "gae", "lam": 0.9, "whiten": False},
    {"estimator": "grpo", "whiten": True},
]


def name_of(settings: dict[str, Any]) -> str:
    return "-".join(str(value) for value in settings.values())


def test_every_estimator_is_tried_below() -> None:
    assert {settings["estimator"] for settings in OTHERS} == set(ESTIMATORS)


@pytest.mark.parametrize("recorded", [{"lam": 0.95}, {"lam": 0.6, "whiten": False}], ids=name_of)
@pytest.mark.parametrize("tried", OTHERS, ids=name_of)
def test_a_what_if_is_what_a_real_update_computes(
    tried: dict[str, Any], recorded: dict[str, Any]
) -> None:
    batch = real_batch()
    recorded = {"estimator": "gae", **recorded}
    step = step_of(batch, **recorded)
    settings = dict(tried)
    if "whiten" not in settings and recorded.get("whiten") is False:
        settings["whiten"] = False  # the run's own choice stays
    found = recompute(step, WhatIf.of_names(**tried))
    real = credited(batch, **settings)
    for name in ("advantages", "returns", "whitened"):
        assert found.columns[name].tolist() == pytest.approx(flat(real, name), abs=1e-6), name


@pytest.mark.parametrize("recorded", ["gae", "grpo", "rloo", "reinforce++", "gdpo", "n_step"])
def test_the_recorded_setting_gives_the_recorded_numbers(recorded: str) -> None:
    batch = real_batch()
    for rows in (len(MASKS), 5):
        step = step_of(batch, rows=rows, estimator=recorded)
        real = credited(batch, estimator=recorded)
        if ESTIMATORS[recorded].needs.groups and rows < len(MASKS):
            continue  # a group that was cut is compared with what is left of it
        found = recompute(step, WhatIf())
        for name in ("advantages", "returns", "whitened"):
            expected = flat(real, name, rows)
            assert found.columns[name].tolist() == pytest.approx(expected, abs=1e-6), name


def test_with_a_part_of_the_batch_the_batchs_own_mean_and_spread_move_along() -> None:
    batch = real_batch()
    step = step_of(batch, rows=5, lam=0.95)
    real = credited(batch, lam=0.95)
    mean = float(real["whiten_mean"][0])
    std = float(real["whiten_std"][0])
    before = np.array(flat(real, "advantages", 5))[step.mask]
    found = recompute(step, WhatIf.of_names(lam=0.3))
    after = found.columns["advantages"][step.mask]
    assert found.mean == pytest.approx(mean + after.mean() - before.mean(), abs=1e-6)
    spread = math.sqrt(after.var(ddof=1) + 1e-8) / math.sqrt(before.var(ddof=1) + 1e-8)
    assert found.std == pytest.approx(std * spread, rel=1e-5)
    expected = (after - found.mean) / found.std
    assert found.columns["whitened"][step.mask].tolist() == pytest.approx(expected.tolist())


def test_a_small_change_of_lambda_is_a_small_change_of_whitened_advantages() -> None:
    """Whitening only the shown answers once made −0.817 into −0.596 between 0.95 and 0.96."""
    step = step_of(real_batch(), rows=3, lam=0.95)
    by_lam = {
        lam: recompute(step, WhatIf.of_names(lam=lam)).columns["whitened"] for lam in (0.95, 0.951)
    }
    recorded = step.column("whitened")
    assert recorded is not None
    assert np.abs(by_lam[0.95] - recorded).max() < 1e-6
    assert np.abs(by_lam[0.951] - recorded).max() < 0.02


def test_a_lambda_replaces_one_that_depends_on_the_length_and_not_that_of_the_critic() -> None:
    settings = Settings.of(lam_alpha=0.5, lam_critic=0.3)
    own = WhatIf.of_names("gae", gamma=0.9).of(settings)
    assert (own.lam(4), own.lam_critic) == (0.5, 0.3)  # 1 − 1/(0.5·4)
    changed = WhatIf.of_names("gae", lam=0.8).of(settings)
    assert (changed.lam(4), changed.lam_critic) == (0.8, 0.3)


def test_whitening_follows_the_estimator_unless_the_run_chose_otherwise() -> None:
    usual = Settings.of(estimator="gae", whiten=True)
    assert not WhatIf("grpo").of(usual).whiten
    assert WhatIf("monte_carlo").of(usual).whiten
    assert WhatIf("grpo", whiten=True).of(usual).whiten
    chosen = Settings.of(estimator="gae", whiten=False)
    assert not WhatIf("monte_carlo").of(chosen).whiten


# ---- what is offered ----


def without(batch: Any, *names: str, **settings: Any) -> RecordedStep:
    table = table_of(credited(batch, **settings), **settings)
    return RecordedStep(table.drop_columns(list(names)))


def test_an_offer_that_the_record_does_not_allow_says_why() -> None:
    whole = {offer.name: offer.why_not for offer in offers(step_of(real_batch()))}
    assert set(whole.values()) == {None}
    bare = without(real_batch(), "sum_pi_squared", "attention", "greedy_score", "parts")
    said = {offer.name: offer.why_not for offer in offers(bare)}
    refused = {name: words.en for name, words in said.items() if words is not None}
    assert refused == {
        "remax": "the score of the greedy response was not recorded",
        "gdpo": "the weights of the score's parts are not known",
        "optimal_token_baseline": "Σπ² of each position was not recorded",
        "attention": "a weight for each token was not recorded",
    }
    assert all(words.zh for words in said.values() if words is not None)


def test_without_a_critic_no_estimator_that_asks_one_is_offered() -> None:
    batch = real_batch()
    batch = batch.with_columns(values=torch.zeros_like(batch["values"]))
    step = step_of(batch, estimator="grpo")
    needing = {name for name in ESTIMATORS if ESTIMATORS[name].needs.critic}
    refused = {offer.name for offer in offers(step) if offer.why_not is not None}
    assert refused == needing
    assert "deltas" not in recompute(step, WhatIf("rloo")).columns


def test_one_response_per_prompt_is_no_group() -> None:
    batch = real_batch()
    alone = batch.with_columns(group=torch.arange(len(batch)))
    refused = {offer.name for offer in offers(step_of(alone)) if offer.why_not is not None}
    assert refused == {name for name in ESTIMATORS if ESTIMATORS[name].needs.groups}


def test_a_group_that_was_recorded_in_part_is_pointed_out() -> None:
    batch = real_batch()
    table = table_of(credited(batch), rows=5)  # 0 0 1 1 0
    by_name = {offer.name: offer for offer in offers(RecordedStep(table, group_size=4))}
    note = by_name["grpo"].note
    assert note is not None
    assert note.en.startswith("2 of 2 groups were recorded in part (4 responses each)")
    assert "2 组中有 2 组没有记全" in note.zh
    assert by_name["gae"].note is None
    assert all(offer.note is None for offer in offers(step_of(batch)))


def test_the_page_computes_only_what_is_gaes_recursion() -> None:
    found = {offer.name: offer.recursion for offer in offers(step_of(real_batch()))}
    assert {name: lam for name, lam in found.items() if lam is not None} == {
        "gae": "lam",
        "monte_carlo": 1.0,
        "td0": 0.0,
    }


def test_gamma_is_offered_where_it_changes_something() -> None:
    found = {offer.name for offer in offers(step_of(real_batch())) if offer.discounts}
    assert found == {"gae", "monte_carlo", "td0", "n_step", "reinforce++", "remax"}


def test_settings_come_with_their_limits() -> None:
    step = step_of(real_batch(), estimator="gae", lam=0.9, lam_alpha=0.5)
    by_name = {offer.name: offer for offer in offers(step)}
    lam, critic, alpha = by_name["gae"].settings
    assert (lam.name, lam.value, lam.low, lam.high, lam.integer) == ("lam", 0.9, 0, 1, False)
    assert (critic.name, critic.value, critic.optional) == ("lam_critic", None, True)
    assert (alpha.name, alpha.value, alpha.high) == ("lam_alpha", 0.5, None)
    (n,) = by_name["n_step"].settings
    assert (n.name, n.low, n.integer) == ("n", 1, True)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"estimator": "nothing"}, "no estimator 'nothing'; use gae,"),
        ({"estimator": "/etc/passwd:x"}, "no estimator"),
        ({"gamma": "2"}, "gamma"),
        ({"gamma": "nan"}, "gamma is a number, not 'nan'"),
        ({"lam": "-0.1"}, "lam"),
        ({"lam": "x" * 1000}, "lam is a number"),
        ({"estimator": "td0", "lam": "0.5"}, "td0 has no setting 'lam'"),
        ({"estimator": "n_step", "n": "0"}, "n: "),
        ({"estimator": "n_step", "n": "1.5"}, "n: "),
        ({"loss": "nothing"}, "no loss 'nothing'"),
    ],
)
def test_other_settings_are_refused(query: dict[str, str], said: str) -> None:
    with pytest.raises(TelescopeError, match=said) as refused:
        read_whatif(step_of(real_batch()), query)
    assert len(str(refused.value)) < 400


def test_a_request_is_read() -> None:
    step = step_of(real_batch())
    query = {"estimator": "gae", "lam": "0.5", "lam_alpha": "none", "whiten": "0"}
    assert read_whatif(step, query) == WhatIf(
        "gae", None, False, (("lam", 0.5), ("lam_alpha", None))
    )
    assert read_whatif(step, {}) == WhatIf()


# ---- one token ----


def test_the_terms_of_a_token_end_in_its_numbers() -> None:
    step = step_of(real_batch(), lam=0.95)
    for name, row, t in (("gae", 0, 3), ("n_step", 1, 1), ("grpo", 2, 0), ("gdpo", 4, 2)):
        found = recompute(step, WhatIf.of_names(name, gamma=0.9))
        one = sample_of(found, recorded_sample(step.table, row), row)
        terms = {term.name: term for term in token_terms(tracer_of(one), t)}
        place = step.offsets[row] + t
        for term, column in (("advantage", "advantages"), ("whitened", "whitened")):
            assert terms[term].result == pytest.approx(found.columns[column][place]), name
    by_lam = recompute(step, WhatIf.of_names("gae", lam=1.0))
    one = sample_of(by_lam, recorded_sample(step.table, 0), 0)
    terms = {term.name: term for term in token_terms(tracer_of(one), 3)}
    assert terms["monte_carlo"].formula.startswith("A₃[MC] = r₃ + ")  # what λ = 1 comes to
    assert all(term.recorded is None for term in terms.values())


def test_the_weights_of_later_deltas_are_powers_of_gamma_lambda() -> None:
    step = step_of(real_batch(), lam=0.95)
    by_gae = recompute(step, WhatIf.of_names("gae", gamma=0.9))
    assert by_gae.weights(1) == pytest.approx([(0.9 * 0.95) ** k for k in range(5)])
    by_length = recompute(step, WhatIf.of_names("gae", lam_alpha=0.4))
    assert by_length.weights(0) == pytest.approx([(1 - 1 / 2.8) ** k for k in range(7)])
    assert recompute(step, WhatIf("td0")).weights(0) == [1.0]
    assert recompute(step, WhatIf.of_names("n_step", n=3)).weights(0) == [1.0, 1.0, 1.0]
    assert recompute(step, WhatIf("grpo")).weights(0) == []


def test_a_recorded_sample_has_the_same_weights() -> None:
    one = lesson()[3]
    assert delta_weights(one) == pytest.approx([0.95**k for k in range(5)])


# ---- policy losses ----


def test_another_loss_gives_the_clipped_tokens_and_losses_of_the_real_one(tmp_path: Any) -> None:
    from telescope.ledger import reader
    from tests.viewer.fake import fake_run

    step = RecordedStep(reader.read(fake_run(tmp_path / "run", {40: lesson()}), 40))
    assert step.update is not None
    tried = [offer.name for offer in loss_offers(step) if offer.why_not is None]
    assert len(tried) >= 8
    for name in tried:
        found = recompute(step, WhatIf(loss=name))
        definition = POLICY_LOSSES[name]
        for row, at in enumerate(step.at):
            within = at - step.offsets[row]
            given = {
                key: torch.tensor(step.update[key][row][within])[None].double()
                for key in ("log_probs", "old_log_probs")
            }
            advantages = torch.tensor(found.columns["whitened"][at])[None]
            terms = definition.call(
                given["log_probs"],
                given["old_log_probs"],
                advantages,
                torch.ones_like(advantages),
                settings=found.settings.actor,
            )
            loss = terms.loss[0].tolist()
            assert found.columns["loss"][at].tolist() == pytest.approx(loss, abs=1e-6), name
            hit = (terms.clipped | terms.dual_clipped)[0].tolist()
            assert found.columns["clipped"][at].astype(bool).tolist() == hit, name


def test_a_loss_that_marks_tokens_is_not_offered_where_none_were_marked() -> None:
    step = step_of(real_batch())
    assert {offer.why_not.en for offer in loss_offers(step) if offer.why_not} == {
        "no update of the policy was recorded"
    }
