"""The facts that texts name, against numbers worked out by hand."""

import pytest

from telescope.explain.facts import facts
from telescope.explain.numbers import from_numbers
from tests.explain.grid import cells
from tests.explain.samples import demo, with_tool
from tests.explain.vocabulary import VOCABULARY

THREE = {"rewards": [0.0, 0.0, 1.0], "values": [0.3, 0.4, 0.6], "lam": 0.95}


def test_the_three_token_example():
    known = facts(from_numbers(THREE))
    assert known["ds"] == pytest.approx([0.1, 0.2, 0.4])
    assert known["As"] == pytest.approx([0.651, 0.58, 0.4])
    assert known["MCs"] == pytest.approx([0.7, 0.6, 0.4])
    assert known["A50s"] == pytest.approx([0.3, 0.4, 0.4])
    assert known["A0s"] == pytest.approx([0.1, 0.2, 0.4])
    assert known["Rs"] == pytest.approx([0.951, 0.98, 1.0])
    assert known["later"] == pytest.approx(0.6)
    assert known["shares"] == pytest.approx([90.25, 95.0, 100.0])
    assert known["G"] == known["came"] == pytest.approx(1.0)


def test_what_was_cut_off_is_a_guess_and_not_a_reward():
    """γ = 0.9 and V_end = 0.5 after two tokens: 0.81 · 0.5 = 0.405 beside the rewards' 1.0."""
    cut = from_numbers(
        {"rewards": [0.1, 1.0], "values": [0.3, 0.4], "bootstrap": 0.5, "gamma": 0.9, "lam": 1.0}
    )
    known = facts(cut)
    assert known["cut"]
    assert known["G"] == pytest.approx(1.0)
    assert known["V_cut"] == pytest.approx(0.405)
    assert known["came"] == pytest.approx(1.405)
    assert known["MC"] == known["A"] == pytest.approx(1.105)


def test_a_tools_tokens_take_no_time_step():
    known = facts(with_tool())
    assert known["tools"]
    assert known["next"] == "V[3]"
    assert known["V_next"] == 0.4
    assert known["N"] == known["tokens"] == 4
    assert known["T"] == 6
    assert facts(with_tool(), "en", 5)["next"] == "V_end"


def test_other_lambdas_do_not_depend_on_the_length():
    known = facts(
        from_numbers({"rewards": [0.1, 1.0, 0.3], "values": [0.3, 0.4, 0.1], "lam_alpha": 0.5})
    )
    assert known["lam"] == pytest.approx(1 / 3)
    assert known["A95s"] == pytest.approx([1.0455, 0.89, 0.2])
    assert known["As"] == pytest.approx([0.4556, 0.7667, 0.2], abs=1e-4)


def test_a_critic_with_a_lambda_of_its_own_has_targets_of_its_own():
    own = {"rewards": [-0.1, 0.2, 1.0], "values": [0.3, 0.4, 0.6], "lam": 0.5, "lam_critic": 1.0}
    known = facts(from_numbers(own))
    assert known["own_R"]
    assert known["lam_R"] == 1.0
    assert known["Rs"] == pytest.approx([1.1, 1.2, 1.0])
    assert known["As"] == pytest.approx([0.3, 0.6, 0.4])
    assert known["RV"] == pytest.approx(0.8)


def test_the_clip_names_its_branch():
    branches = [facts(demo(), "en", t)["branch"] for t in range(7)]
    assert branches[3] == "clipped"
    assert facts(demo(), "en", 3)["clip_term"] < facts(demo(), "en", 3)["term"]


def test_rejected_tokens_take_no_part_in_the_terms():
    given = {
        "rewards": [0.1, 1.0, 0.3],
        "values": [0.3, 0.4, 0.1],
        "old": [-0.5, -1.0, -2.0],
        "new": [-0.4, -1.5, -1.0],
        "rollout_log_probs": [-0.9, -1.1, -1.9],
        "reject": "token",
        "reject_high": 1.3,
    }
    known = facts(from_numbers(given))
    assert known["ratios"] == pytest.approx([0.6065, 2.718], rel=1e-3)
    assert known["rejected"] == 1


def test_kl_the_sampler_and_the_value_clip_of_one_token():
    """d = 0.2: ½·0.04 and e^−0.2 − 0.8. The critic moves by 0.6, of which 0.2 count."""
    given = {
        "scores": [1.0],
        "old": [-0.5],
        "ref": [-0.7],
        "rollout_log_probs": [-0.6],
        "values": [0.3],
        "new_values": [0.9],
        "kl_coef": 0.1,
        "clip_value": 0.2,
    }
    known = facts(from_numbers(given))
    assert [known["k1"], known["k2"]] == pytest.approx([0.2, 0.02])
    assert known["k3"] == pytest.approx(0.018731, abs=1e-6)
    assert [known["kl_sum"], known["score_sum"], known["r_sum"]] == pytest.approx([0.2, 1.0, 0.98])
    assert [known["gap"], known["mismatch"]] == pytest.approx([0.1, 1.105171], abs=1e-6)
    assert [known["moved"], known["v_clip"]] == pytest.approx([0.6, 0.5])
    assert known["first_loss"] == pytest.approx(0.5 * 0.68**2)
    assert known["loss"] == pytest.approx(0.5 * 0.48**2)


def test_rewards_that_are_not_score_less_kl_do_not_follow():
    given = {"scores": [0.0, 1.0], "values": [0.3, 0.4]}
    assert facts(from_numbers(given))["r_follows"]
    assert not facts(from_numbers({**given, "rewards": [-0.1, 0.9]}))["r_follows"]


def test_every_fact_is_in_the_vocabulary_and_every_word_of_it_is_a_fact():
    seen = set()
    for number, cell in enumerate(cells()):
        if number % 11 == 0:
            seen |= facts(cell.sample, "en", cell.token).keys()
    assert not seen - VOCABULARY.keys()
    assert not VOCABULARY.keys() - seen
