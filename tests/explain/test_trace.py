"""Traces recompute what the trainer recorded, and say ✗ where a recorded number is wrong."""

import json
import math
import re
from dataclasses import replace

import pytest

from telescope.algorithms import gae, kl_penalty, n_step_advantages
from telescope.algorithms.definitions.notation import enough, num
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill
from telescope.explain.numbers import from_numbers
from telescope.explain.sample import SAMPLE_COLUMNS, ActorUpdate, CriticUpdate, Sample
from telescope.explain.settings import Settings
from telescope.explain.trace import Tracer, compare, traces
from tests.explain.samples import demo, nearly_equal, row, trained, with_tool

BASICS = [
    "kl",
    "reward",
    "delta",
    "advantage_sum",
    "advantage",
    "return",
    "whitened",
    "ratio",
    "clip",
    "surrogate",
    "value_loss",
]


def by_name(sample: Sample, t: int, update: int = -1) -> dict:
    return {trace.name: trace for trace in traces(sample, t, update)}


@pytest.mark.parametrize("estimator", ["gae", "monte_carlo", "td0"])
@pytest.mark.parametrize("loss", ["clip", "cpi"])
@pytest.mark.parametrize("whiten", [True, False])
def test_everything_the_trainer_computes_is_confirmed(estimator, loss, whiten):
    states = set()
    for kl_kind in ("k1", "abs", "k2", "k3"):
        for sample in trained(1, estimator=estimator, loss=loss, kl_kind=kl_kind, whiten=whiten):
            for t in range(len(sample)):
                found = traces(sample, t)
                assert bool(found) == bool(sample.mask[t])
                assert not [trace for trace in found if trace.ok is False]
                unchecked = {trace.name for trace in found if trace.ok is None}
                assert unchecked == (
                    {"surrogate" if loss == "clip" else "clip"} if found else set()
                )
                states |= {(trace.name, trace.state) for trace in found if trace.state}
    assert {("clip", "inside"), ("clip", "kept"), ("clip", "clipped")} <= states
    assert (("clip", "dual") in states) == (loss == "clip")  # the other has no such setting
    assert {("value_loss", "inside"), ("value_loss", "kept"), ("value_loss", "clipped")} <= states


def test_traces_come_in_the_order_in_which_ppo_makes_the_numbers():
    assert [trace.name for trace in traces(demo(), 3)] == BASICS


def test_the_worked_token_of_the_design():
    found = by_name(demo(), 3)
    assert found["advantage_sum"].formula == "A₃ = δ₃ + 0.95·δ₄ + 0.95²·δ₅ + 0.95³·δ₆"
    assert found["advantage_sum"].substituted == "0.102 + 0.153 + 0.04513 + 0.06002"
    assert found["advantage_sum"].result == pytest.approx(0.36009125)
    assert found["advantage"].substituted == "0.102 + 0.95·0.2717"
    assert found["whitened"].substituted == "(0.3601 − 0.2951)/0.1524"
    assert (found["clip"].state, num(found["clip"].result), num(found["surrogate"].result)) == (
        "clipped",
        "0.5119",
        "0.5263",
    )


def test_in_the_first_minibatch_the_ratio_is_one_and_the_term_is_the_advantage():
    found = by_name(demo(), 3, update=0)
    assert found["ratio"].result == 1
    assert found["clip"].result == found["surrogate"].result == found["whitened"].result


def test_a_tool_takes_no_time_step_and_the_end_of_a_cut_off_response_has_a_value():
    sample = with_tool()
    first, last = by_name(sample, 0), by_name(sample, 5)
    assert first["delta"].formula == "δ₀ = r₀ + γ·V₃ − V₀"  # tokens 1 and 2 are the tool's
    assert first["delta"].result == pytest.approx(0.1 + 0.5 * 0.4 - 0.5)
    assert first["advantage_sum"].formula == "A₀ = δ₀ + 0.25·δ₃ + 0.25²·δ₄ + 0.25³·δ₅"
    assert last["delta"].formula == "δ₅ = r₅ + γ·V_end − V₅"
    assert last["delta"].result == pytest.approx(0.3 + 0.5 * 0.8 - 0.7)
    assert traces(sample, 1) == []


def test_fill_equals_the_trainers_functions_on_holes_and_cut_off_ends():
    for sample in trained(3):
        given = {
            name: sample.columns[name]
            for name in ("old_log_probs", "ref_log_prob", "token_level_scores", "values")
        }
        blank = replace(sample.actor_updates[0], ratio=[], clipped=[], dual_clipped=[], loss=[])
        critic = replace(sample.critic_updates[0], clipped=[], loss=[])
        full = fill(replace(sample, columns=given, actor_updates=[blank], critic_updates=[critic]))
        for name in SAMPLE_COLUMNS:
            if name in sample.columns:
                assert full.columns[name] == pytest.approx(sample.columns[name], abs=1e-5), name
        for name in ("ratio", "loss"):
            assert getattr(full.actor_updates[0], name) == pytest.approx(
                getattr(sample.actor_updates[0], name), abs=1e-4
            )
        assert full.actor_updates[0].clipped == sample.actor_updates[0].clipped
        assert full.actor_updates[0].dual_clipped == sample.actor_updates[0].dual_clipped
        assert full.critic_updates[0].clipped == sample.critic_updates[0].clipped


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ("kl", {"kl"}),
        ("token_level_rewards", {"reward"}),
        ("deltas", {"delta"}),
        ("returns", {"return"}),
        ("whitened", {"whitened"}),
    ],
)
def test_a_wrong_number_is_marked_where_it_went_wrong_and_only_there(column, wrong):
    sample = demo()
    spoiled = [*sample.columns[column]]
    spoiled[3] += 0.01
    wrong_sample = replace(sample, columns={**sample.columns, column: spoiled})
    for t in range(len(sample)):
        found = traces(wrong_sample, t)
        marked = {trace.name for trace in found if trace.ok is False}
        assert marked == (wrong if t == 3 else set())
        verdicts = Tracer(wrong_sample).verdicts(t)
        assert {name for name, right in verdicts.items() if not right} == marked


def test_a_number_computed_from_a_wrong_one_is_marked_only_at_the_wrong_one():
    """A that was computed from a wrong δ agrees with it: the error is in δ."""
    sample = demo()
    deltas = [*sample.columns["deltas"]]
    deltas[3] += 0.01
    advantages = [*sample.columns["advantages"]]
    advantages[3] += 0.01
    columns = {**sample.columns, "deltas": deltas, "advantages": advantages}
    found = traces(replace(sample, columns=columns), 3)
    marked = {trace.name for trace in found if trace.ok is False}
    assert "delta" in marked
    assert "advantage" not in marked


def test_a_wrong_clip_flag_is_marked():
    sample = demo()
    last = sample.actor_updates[-1]
    flags = [not last.clipped[3] if t == 3 else flag for t, flag in enumerate(last.clipped)]
    found = by_name(replace(sample, actor_updates=[replace(last, clipped=flags)]), 3)
    assert found["clip"].ok is False
    assert found["ratio"].ok is True


@pytest.mark.parametrize(
    ("kind", "kl"),
    [("k1", 0.39), ("abs", 0.39), ("k2", 0.5 * 0.39**2), ("k3+", math.exp(-0.39) + 0.39 - 1)],
)
def test_the_kl_term_of_the_loss_is_shown_with_the_updates_own_policy(kind, kl):
    sample = replace(demo(), settings=Settings.of(kl_coef=0.1, kl_loss_coef=0.2, kl_loss_kind=kind))
    found = traces(sample, 3)
    assert [trace.name for trace in found] == [*BASICS[:-1], "kl_loss", "value_loss"]
    term = found[-2]
    assert term.result == pytest.approx(0.2 * kl)
    assert kl_penalty(row([-0.3]), row([-0.69]), kind).item() == pytest.approx(kl)
    assert "log π₃ − log π_ref₃" in term.formula
    assert "−0.3 − (−0.69)" in term.substituted


def test_a_number_that_is_not_finite_is_wrong_and_stays_json():
    sample = demo()
    found = by_name(replace(sample, columns={**sample.columns, "kl": [math.nan] * 7}), 3)
    assert found["kl"].ok is False
    json.dumps([trace.to_json() for trace in found.values()], allow_nan=False)


@pytest.mark.parametrize(
    ("ratio", "advantage", "state", "term"),
    [
        (1.1, 2.0, "inside", 2.2),
        (1.5, 2.0, "clipped", 2.4),
        (0.5, 2.0, "kept", 1.0),
        (0.5, -2.0, "clipped", -1.6),
        (1.5, -2.0, "kept", -3.0),
        (9.0, -2.0, "dual", -6.0),
    ],
)
def test_the_states_of_the_clipped_term(ratio, advantage, state, term):
    settings, log = Settings.of(dual_clip=3.0, whiten=False), math.log(ratio)
    sample = Sample(
        [0],
        [b"x"],
        [1],
        {"advantages": [advantage]},
        settings,
        actor_updates=[ActorUpdate(0, 0, [-9.0], [log - 9], [], [], [], [])],
    )
    found = by_name(sample, 0)
    assert found["clip"].state == state
    assert found["clip"].result == pytest.approx(term)
    assert found["surrogate"].result == pytest.approx(ratio * advantage)
    assert found["clip"].result <= found["surrogate"].result or state == "dual"


@pytest.mark.parametrize(
    ("v", "state", "loss"), [(0.4, "inside", 0.18), (0.9, "clipped", 0.125), (-0.5, "kept", 1.125)]
)
def test_the_states_of_the_value_loss(v, state, loss):
    columns = {"values": [0.3], "returns": [1.0]}
    found = by_name(
        Sample([0], [b"x"], [1], columns, critic_updates=[CriticUpdate(0, 0, [v], [], [])]), 0
    )
    assert (found["value_loss"].state, found["value_loss"].result) == (state, pytest.approx(loss))


def test_without_value_clipping_the_loss_is_half_the_squared_error():
    sample = Sample(
        [0], [b"x"], [1], {"values": [0.3], "returns": [1.0]}, Settings.of(clip_value=None)
    )
    found = by_name(replace(sample, critic_updates=[CriticUpdate(0, 0, [0.5], [], [])]), 0)
    assert found["value_loss"].formula == "L_V₀ = ½·(v₀ − R₀)²"
    assert found["value_loss"].result == pytest.approx(0.125)


def test_other_estimators_beside_gae_are_those_of_the_library():
    for sample in trained(5):
        mask, r, v = (
            row(sample.mask),
            row(sample.columns["token_level_rewards"]),
            row(sample.columns["values"]),
        )
        end = row([sample.bootstrap])[0]
        for t in (t for t, m in enumerate(sample.mask) if m):
            results = [trace.result for trace in compare(sample, t, ns=(3,), lams=(0.5,))]
            want = [
                n_step_advantages(r, v, mask, n=1, gamma=0.98, bootstrap=end),
                n_step_advantages(r, v, mask, n=3, gamma=0.98, bootstrap=end),
                gae(r, v, mask, gamma=0.98, lam=0.5, bootstrap=end)[0],
                gae(r, v, mask, gamma=0.98, lam=1.0, bootstrap=end)[0],
            ]
            assert results == pytest.approx([float(x[0, t]) for x in want], abs=1e-5)


def test_lambda_zero_collapses_to_delta_and_one_drops_the_weights():
    zero, one = compare(demo(), 3, ns=(), lams=(0.0, 1.0))[1:3]
    assert (zero.formula, num(zero.result)) == ("A₃[λ=0] = δ₃", "0.102")
    assert one.formula == "A₃[λ=1] = δ₃ + δ₄ + δ₅ + δ₆"
    assert one.result == pytest.approx(compare(demo(), 3)[-1].result)  # G − V


def test_a_long_sum_is_shortened_in_print_but_not_in_the_result():
    n = 50
    sample = Sample(
        list(range(n)), [b"x"] * n, [1] * n, {"deltas": [1.0] * n}, Settings.of(lam=0.9)
    )
    found = by_name(sample, 0)["advantage_sum"]
    assert found.formula == "A₀ = δ₀ + 0.9·δ₁ + 0.9²·δ₂ + … + 0.9⁴⁹·δ₄₉"
    assert (
        found.substituted == "1 + 0.9 + 0.81 + …(7.233) + 0.005726"
    )  # what was left out is said, so that it adds up
    assert found.result == pytest.approx((1 - 0.9**n) / 0.1)


def test_the_outcome_of_a_group_shows_the_digits_that_its_mean_leaves():
    made = by_name(nearly_equal(estimator="grpo"), 0)["advantage"]
    assert (made.substituted, num(made.result)) == ("(0.9999998743 − 1)/1e−06", "−0.1257")
    made = by_name(nearly_equal(9, estimator="grpo"), 0)["outcome"]
    assert made.substituted == "0 + 0 + 0 + …(0) + 1"


OTHERS = [{"estimator": name} for name in ("monte_carlo", "grpo", "remax")]


@pytest.mark.parametrize(
    "settings", [{}, *OTHERS, {"gamma": 0.99999}, {"lam_critic": 1.0}, {"kl_kind": "k2"}]
)
@pytest.mark.parametrize("length", [2, 3, 9])
def test_the_numbers_of_every_sum_add_up_to_its_result(settings, length):
    sample, checked = nearly_equal(length, **settings), 0
    for t in range(length):
        for trace in [*traces(sample, t), *compare(sample, t)]:
            text = trace.substituted.translate(
                str.maketrans({"−": "-", "·": "*", "…": "", "½": "0.5", "×": "*"})
            ).replace(")²", ")**2")
            if re.fullmatch(r"[\d.e+*/() -]+|\.5\*max\(.*", text):
                assert eval(text) == pytest.approx(trace.result, rel=3e-3, abs=1e-12), trace
                checked += 1
    assert checked > 5 * length


def test_only_what_cancels_gets_more_digits():
    assert (
        enough([0.651, -0.58])
        == enough([1 / 3, 2 / 3, -0.1])
        == enough([0.3, -0.3])
        == enough([math.inf, -math.inf])
        == 4
    )
    assert enough([1 / 3, -0.3333]) == 7
    assert enough([123456.789, -123456.0]) == 9
    assert (num(1 / 3, 7), num(123456.789, 9), num(123456.789), num(1.0, 9)) == (
        "0.3333333",
        "123456.789",
        "123457",
        "1",
    )


def test_large_numbers_in_float32_are_not_called_wrong():
    sample = Sample(
        [0],
        [b"x"],
        [1],
        {"token_level_rewards": [1000.0], "values": [999.9], "deltas": [0.1 + 3e-5]},
    )
    assert by_name(sample, 0)["delta"].ok is True


def test_a_token_that_is_not_there_is_refused():
    with pytest.raises(TelescopeError, match="no token 7: this response has 7 tokens, 0 to 6"):
        traces(demo(), 7)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.651, "0.651"),
        (-0.018, "−0.018"),
        (0.0, "0"),
        (1.23456, "1.235"),
        (3.2e-5, "3.2e−05"),
        (123456.0, "123456"),
    ],
)
def test_numbers_are_printed_short(x, text):
    assert num(x) == text


def test_what_is_printed_evaluates_to_its_right_side():
    """Factors and log-probs that cancel are given the digits they need, and k3's value does not follow `d =`."""
    sample = from_numbers(
        {"score": 1.0, "old": [-10.016, -0.2], "new": [-10.014, -0.2], "ref": [-10.066, -0.25], "values": [122.004, 131.146],
         "gamma": 0.99, "kl_kind": "k3", "beta": 0.1, "clip_value": 0.2, "huber_delta": 0.1, "dual_clip": 3.0}
    )  # fmt: skip
    found = {trace.name: trace for trace in traces(sample, 0)}
    assert found["ratio"].substituted == "exp(−10.014 − (−10.016))"
    assert found["kl"].substituted == "min(10, e^(−0.05) + 0.05 − 1) [d = −10.02 − (−10.07) = 0.05]"
    assert found["kl"].variant == "k3"
    assert found["value_loss"].variant == "huber"
    assert found["kl"].result == pytest.approx(0.0012294, rel=1e-3)
    assert "[H(x) = ½·x² for |x| ≤ 0.1, else 0.1·(|x| − 0.05)]" in found["value_loss"].formula
    for name in ("reward", "delta", "advantage"):
        text = found[name].substituted.replace("−", "-").replace("·", "*").replace("×", "*")
        assert eval(text) == pytest.approx(found[name].result, rel=2e-3), text
