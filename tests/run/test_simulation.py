"""Bias and variance by λ, against what can be worked out by hand for this process."""

from __future__ import annotations

import itertools
import re

import pytest

from telescope.commands import main
from telescope.run.simulation import (
    EPISODES,
    GAMMA,
    KEEPS,
    LAMS,
    LUCK,
    NOISE,
    OFFSET,
    TOKENS,
    Simulation,
    facts,
    simulate,
)


@pytest.fixture(scope="module")
def found() -> Simulation:
    return simulate()


def share_of_v(lam: float) -> list[float]:
    """The weights of V(s_1), V(s_2), … in R_0: γ(γλ)^k·(1 − λ)."""
    return [GAMMA * (GAMMA * lam) ** k * (1 - lam) for k in range(TOKENS - 1)]


def luck_variance(lam: float) -> float:
    """The variance of Σ (γλ)^k·δ_k with the true V.

    δ_k is ε_k times its discounted worth in all later rewards. The δ_k do not covary.
    """
    total = 0.0
    for k in range(TOKENS):
        worth = sum((GAMMA * KEEPS) ** j for j in range(TOKENS - k))
        total += (GAMMA * lam) ** (2 * k) * (LUCK * worth) ** 2
    return total


def test_with_an_exact_v_no_lambda_is_biased_and_variance_falls_with_it(found: Simulation) -> None:
    assert found.exact.bias == pytest.approx([0.0] * 5, abs=found.error)
    assert found.exact.variance == pytest.approx([luck_variance(lam) for lam in LAMS], rel=0.02)
    assert all(a < b for a, b in itertools.pairwise(found.exact.variance))


def test_with_a_wrong_v_bias_rises_and_variance_falls_as_lambda_falls(found: Simulation) -> None:
    wanted = [OFFSET * sum(share_of_v(lam)) for lam in LAMS]
    assert found.high.bias == pytest.approx(wanted, abs=found.error)
    assert all(a > b + found.error for a, b in itertools.pairwise(found.high.bias))
    assert found.high.bias[-1] == pytest.approx(0.0, abs=found.error)
    assert all(a < b for a, b in itertools.pairwise(found.high.variance))


def test_less_variance_needs_a_decent_v(found: Simulation) -> None:
    noise = [NOISE**2 * sum(share**2 for share in share_of_v(lam)) for lam in LAMS]
    wanted = [luck_variance(lam) + extra for lam, extra in zip(LAMS, noise, strict=True)]
    assert found.erratic.variance == pytest.approx(wanted, rel=0.02)
    assert found.erratic.variance[0] > 1.5 * found.erratic.variance[-1]
    assert found.erratic.bias == pytest.approx([0.0] * 5, abs=found.error)


@pytest.mark.parametrize(
    ("keeps", "low", "high"), [(KEEPS, 2.0, 4.0), (0.0, 0.98, 1.02), (-KEEPS, 0.1, 0.5)]
)
def test_the_variance_of_a_return_is_that_of_its_rewards_only_where_they_do_not_covary(
    keeps: float, low: float, high: float
) -> None:
    found = simulate(keeps=keeps)
    assert low < found.return_variance / found.variance_sum < high
    assert found.return_variance == pytest.approx(found.variance_sum + found.covariance)
    assert found.exact.variance[-1] == pytest.approx(found.return_variance)  # λ = 1 is Monte Carlo


def test_the_same_seed_draws_the_same_episodes() -> None:
    assert simulate() == simulate() != simulate(seed=1)


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("level", ["expert", "kid"])
def test_question_14_is_answered_with_what_was_simulated(
    lang: str, level: str, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    printed = []
    for number in ("14", "13"):
        main(["explain", "--question", number, "--lang", lang, "--level", level])
        printed.append(capsys.readouterr().out)
    answer, other = printed
    if level == "kid":  # no lists of numbers
        assert not re.search(r"[γλδσ\[{]|V_", answer)
        assert str(EPISODES) in answer
    else:
        for name, text in facts().items():
            assert text.strip("[]") in answer, name
    assert str(EPISODES) not in other
