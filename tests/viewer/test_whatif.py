"""What-ifs: the same arithmetic as the record's, checked against numbers worked out here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from telescope.errors import TelescopeError
from telescope.explain.arithmetic import moments
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.viewer.whatif import (
    WhatIf,
    choices,
    delta_weights,
    grid,
    offers,
    read_whatif,
    recompute,
    token_terms,
    tracer_of,
)
from tests.viewer.fake import lesson


def advantages(sample: Sample) -> list[float]:
    return [a for a, m in zip(sample.columns["advantages"], sample.mask, strict=True) if m]


def test_the_runs_own_settings_give_the_recorded_columns() -> None:
    recorded = lesson()
    for one, again in zip(recorded, recompute(recorded, WhatIf("gae")), strict=True):
        for name in ("deltas", "advantages", "returns", "whitened"):
            assert again.columns[name] == pytest.approx(one.columns[name], abs=1e-9)


def test_lambda_zero_is_td0_and_lambda_one_is_monte_carlo() -> None:
    for name, lam in (("td0", 0.0), ("monte_carlo", 1.0)):
        by_name = recompute(lesson(), WhatIf(name, 0.9))
        by_lam = recompute(lesson(), WhatIf("gae", 0.9, lam))
        for one, other in zip(by_name, by_lam, strict=True):
            assert advantages(one) == pytest.approx(advantages(other), abs=1e-9)


def test_whitening_takes_the_samples_that_were_given() -> None:
    some = recompute(lesson()[:2], WhatIf("gae", 0.9))
    mean, std = moments([a for one in some for a in advantages(one)])
    for one in some:
        expected = [(a - mean) / std for a in advantages(one)]
        assert one.columns["whitened"] == pytest.approx(expected)


def test_a_sample_without_values_stays_as_recorded() -> None:
    one, other = lesson()[:2]
    columns = {name: column for name, column in one.columns.items() if name != "values"}
    bare = replace(one, columns=columns)
    first, second = recompute([bare, other], WhatIf("gae", 0.9))
    assert first is bare
    assert second.columns["advantages"] != other.columns["advantages"]


def test_a_lambda_of_its_own_replaces_one_that_depends_on_the_length() -> None:
    settings = Settings.of(lam_alpha=0.5, lam_critic=0.3)
    own = WhatIf("gae", 0.9).of(settings)
    assert (own.lam(4), own.lam_critic) == (0.5, 0.3)  # 1 − 1/(0.5·4)
    changed = WhatIf("gae", 0.9, 0.8).of(settings)
    assert (changed.lam(4), changed.lam_critic) == (0.8, None)


def test_the_weights_of_later_deltas_are_powers_of_gamma_lambda() -> None:
    by_gae, by_td0 = (recompute(lesson(), WhatIf(name, 0.9))[3] for name in ("gae", "td0"))
    assert delta_weights(by_gae) == pytest.approx([(0.9 * 0.95) ** k for k in range(5)])
    assert delta_weights(by_td0) == [1.0]


def test_an_advantage_that_is_no_sum_of_deltas_has_no_weights() -> None:
    one = lesson()[0]
    spread = replace(one, columns={**one.columns, "advantages": [0.2] * len(one)})
    assert delta_weights(spread) == []


def test_the_terms_of_a_token_end_in_its_numbers() -> None:
    one = recompute(lesson(), WhatIf("gae", 0.9, 1.0))[0]
    terms = {term.name: term for term in token_terms(tracer_of(one), 3)}
    assert terms["advantage"].result == pytest.approx(one.columns["advantages"][3])
    assert terms["return"].result == pytest.approx(one.columns["returns"][3])
    assert terms["whitened"].result == pytest.approx(one.columns["whitened"][3])
    assert terms["monte_carlo"].formula.startswith("A₃[MC] = r₃ + ")  # what λ=1 comes to
    assert all(term.recorded is None for term in terms.values())


def test_a_grid_has_the_runs_own_settings() -> None:
    settings = Settings.of(gamma=0.97, lam=0.85)
    gammas, lams = grid(settings)
    assert 0.97 in gammas
    assert 0.85 in lams
    keys = [key for key, _ in choices(settings)]
    assert len(keys) == len(set(keys))
    assert f"gae/{gammas.index(0.97)}/-1" in keys
    assert f"gae/{gammas.index(0.97)}/{lams.index(0.85)}" not in keys  # that is -1
    assert sum(key.startswith("td0/") for key in keys) == len(gammas)  # it has no λ


def test_only_estimators_with_a_lambda_say_so() -> None:
    assert {offer.name: offer.lam for offer in offers()} == {
        "gae": 0.95,
        "monte_carlo": None,
        "td0": None,
    }


@pytest.mark.parametrize(
    ("estimator", "gamma", "lam", "said"),
    [
        ("grpo", None, None, "no estimator 'grpo' can be tried here; use gae,"),
        ("", None, None, "no estimator ''"),
        ("gae", "2", None, "gamma is a number from 0 to 1, not '2'"),
        ("gae", "nan", None, "gamma"),
        ("gae", None, "-0.1", "lam is a number from 0 to 1"),
        ("gae", None, "x" * 1000, "lam"),
    ],
)
def test_other_settings_are_refused(
    estimator: str, gamma: str | None, lam: str | None, said: str
) -> None:
    with pytest.raises(TelescopeError, match=said) as refused:
        read_whatif(Settings.of(), estimator, gamma, lam)
    assert len(str(refused.value)) < 200
