"""Estimators without a critic: the group with its numbers, and no V, δ or R."""

from __future__ import annotations

import math
import statistics

import pytest

from telescope.algorithms.definitions import ESTIMATORS
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill
from telescope.explain.groups import group_of
from telescope.explain.markdown import page
from telescope.explain.numbers import batch_from_numbers
from telescope.explain.stages import flow
from telescope.explain.terminal import render
from telescope.explain.trace import Tracer

SCORES = [1.0, 0.0, 0.5, 1.0]
LENGTHS = [3, 2, 4, 3]
WITHOUT_CRITIC = [name for name, each in ESTIMATORS.built_in.items() if not each.needs.critic]
IN_GROUPS = [name for name in WITHOUT_CRITIC if ESTIMATORS[name].needs.groups]
VIEWS = ("first", "token", "all")


def responses(estimator: str, **more) -> dict:
    """Four answers to one prompt and two to another, with all that any estimator asks for."""
    rows = []
    for k, (score, length) in enumerate(zip([*SCORES, 0.2, 0.8], [*LENGTHS, 2, 2], strict=True)):
        rows.append(
            {
                "group": "one" if k < 4 else "two",
                "score": score,
                "tokens": [f"w{t}" for t in range(length)],
                "values": [0.0] * length,  # as a run without a critic records them
                "old": [-0.5 - 0.1 * t for t in range(length)],
                "sum_pi_squared": [0.5] * length,
                "attention": [1.0 + t for t in range(length)],
                "greedy_score": 0.25,
                "parts": {"answer": score, "form": 0.1 * length},
                "part_weights": {"answer": 1.0, "form": 0.5},
            }
        )
    return {"estimator": estimator, "responses": rows, **more}


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_no_view_shows_what_only_a_critic_gives(estimator, lang):
    batch = batch_from_numbers(responses(estimator))
    options = {"lang": lang, "width": 80, "batch": batch}
    shown = [render(batch[0], extent=extent, color=False, **options) for extent in VIEWS]
    shown.append(page(batch[0], token=None, level="expert", **options))
    shown.append(flow(batch[0], lang, 80, batch=batch))
    for text in shown:
        for word in (
            "δ",
            "V[i]",
            "V₀",
            "V前",
            "V before",
            "R₀",
            "values[i]",
            "deltas",
            "returns[i]",
        ):
            assert word not in text
    said = "→ Â"
    assert all(said in text for text in shown[:3])


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_a_child_hears_of_no_forecaster_s_guess(estimator, lang):
    batch = batch_from_numbers(responses(estimator))
    for extent in ("first", "token"):
        text = render(
            batch[0], lang=lang, level="kid", width=80, batch=batch, extent=extent, color=False
        )
        for word in ("写前猜测", "guess before", "惊喜", "surprise", "target", "目标"):
            assert word not in text
        in_group = "同一道题写了 4 条回答" if lang == "zh" else "was answered 4 times"
        assert (in_group in text) == (estimator in IN_GROUPS)


def test_the_drawing_for_a_child_has_the_group():
    batch = batch_from_numbers(responses("grpo"))
    text = flow(batch[0], "en", 80, level="kid", batch=batch)
    assert "The same question was answered 4 times. These answers earned 0.6 on" in text
    assert "forecaster" not in text.replace("No forecaster", "")


def test_grpo_by_hand():
    batch = batch_from_numbers(responses("grpo"))
    text = render(batch[0], lang="en", width=80, batch=batch, extent="first", color=False)
    mean = sum(SCORES) / 4
    std = statistics.stdev(SCORES)
    assert "scores of the group (4 responses to this prompt): 1, 0, 0.5, 1" in text
    assert "b = μ_group = (1 + 0 + 0.5 + 1)/4 = 0.625" in text
    assert f"σ_group = √(Σ(o − μ_group)²/3) = √(0.6875/3) = {std:.4f}" in text
    assert f"A₀ = (o − b)/(σ_group + 1e-6) = (1 − 0.625)/{std:.4f} = {0.375 / std:.4f}" in text
    assert len(text.splitlines()) <= 24
    for sample, score in zip(batch, SCORES, strict=False):
        expected = (score - mean) / (std + 1e-6)
        assert fill(sample).columns["advantages"] == pytest.approx([expected] * len(sample))


def test_rloo_by_hand():
    batch = batch_from_numbers(responses("rloo"))
    text = render(batch[1], lang="en", width=80, batch=batch, extent="first", color=False)
    assert "b = (Σo − o)/3 = (1 + 0.5 + 1)/3 = 0.8333" in text
    assert "A₀ = o − b = 0 − 0.8333 = −0.8333" in text


def test_another_group_does_not_count():
    batch = batch_from_numbers(responses("dr_grpo"))
    assert fill(batch[4]).columns["advantages"] == pytest.approx([-0.3, -0.3])
    group = group_of(batch, batch[5])
    assert [member.index for member in group.members] == [4, 5]
    assert group.outcomes == [0.2, 0.8]


@pytest.mark.parametrize("estimator", WITHOUT_CRITIC)
def test_every_estimator_without_a_critic_can_be_typed(estimator):
    """A typed advantage is checked; one that is wrong is found."""
    computed = batch_from_numbers(responses(estimator))
    data = responses(estimator)
    for row, sample in zip(data["responses"], computed, strict=True):
        row["advantages"] = list(fill(sample).columns["advantages"])
    data["responses"][0]["advantages"][0] += 0.1
    tracer = Tracer(batch_from_numbers(data)[0])
    wrong = [t for t in range(3) if not all(tracer.verdicts(t).values())]
    has_check = not ESTIMATORS[estimator].needs.score_parts
    is_recursive = estimator == "reinforce++"
    assert wrong == ([0] if has_check or is_recursive else [])


@pytest.mark.parametrize(
    ("estimator", "lacks", "said"),
    [
        ("grpo", "score", "needs score (or rewards): response 0 has none"),
        ("remax", "greedy_score", "needs greedy_score: response 0 has none"),
        ("attention", "attention", "needs attention: response 0 has none"),
        ("gdpo", "parts", "needs parts, part_weights: response 0 has none"),
        ("optimal_token_baseline", "sum_pi_squared", "needs sum_pi_squared: response 0 has none"),
    ],
)
def test_a_missing_field_is_named(estimator, lacks, said):
    data = responses(estimator)
    for row in data["responses"]:
        del row[lacks]
    with pytest.raises(TelescopeError) as error:
        batch_from_numbers(data)
    assert f"estimator = '{estimator}' {said}" in str(error.value)


@pytest.mark.parametrize("estimator", IN_GROUPS)
def test_a_response_alone_cannot_be_compared(estimator):
    data = responses(estimator)
    data["responses"] = data["responses"][:5]
    with pytest.raises(TelescopeError, match=r"at least two .* with the same group"):
        batch_from_numbers(data)


def test_without_a_group_all_responses_are_one():
    data = responses("dr_grpo")
    for row in data["responses"]:
        del row["group"]
    batch = batch_from_numbers(data)
    assert len(group_of(batch, batch[0]).members) == 6
    data["responses"][2]["group"] = "late"
    with pytest.raises(TelescopeError, match="response 2 has a group, the ones before it have non"):
        batch_from_numbers(data)


def test_a_group_of_which_the_ledger_holds_a_part_is_said_to_be_one():
    batch = batch_from_numbers(responses("grpo"))
    text = render(batch[0], lang="en", width=80, batch=batch[:3], extent="all", color=False)
    assert "the ledger has only 3 responses of the group" in text
    assert "b = μ_group" not in text
    assert "A₀ = (o − b)/(σ_group + 1e-6) = (1 − 0.625)/0.4787 = 0.7833" in text


def test_the_claims_of_the_terms_hold():
    """Whole: one A for all tokens. From here on: A = G − b. Rewards only: A = G."""
    for estimator in IN_GROUPS:
        for sample in batch_from_numbers(responses(estimator, gamma=0.9)):
            numbers = fill(sample).columns["advantages"]
            variants = {x.variant for x in Tracer(sample).traces(0) if x.name == "advantage"}
            if variants == {"whole"}:
                assert len(set(numbers)) == 1
    for sample in batch_from_numbers(responses("reinforce++", gamma=0.9)):
        columns = fill(sample).columns
        rewards = columns["token_level_rewards"]
        for t, a in enumerate(columns["advantages"]):
            later = [0.9**k * r for k, r in enumerate(rewards[t:])]
            assert a == pytest.approx(math.fsum(later))
