"""Where the KL to the reference goes by default: as in the paper of the estimator."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.config import Config, load_config
from telescope.run.summary import warnings
from tests.config.configs import given, round_trip

GROUPS = ("rollout.n", "4")


def kl_weights(config: Config) -> tuple[float, float]:
    """In the rewards, and in the loss."""
    return config.credit.kl_coef, config.actor.kl_loss_coef


@pytest.mark.parametrize("estimator", ["gae", "rloo", "reinforce++"])
def test_these_have_the_kl_in_the_rewards(estimator: str) -> None:
    assert kl_weights(given(("credit.estimator", estimator), GROUPS)) == (0.02, 0.0)


@pytest.mark.parametrize("estimator", ["grpo", "gdpo", "maxrl", "reinforce++_baseline"])
def test_these_have_the_kl_in_the_loss(estimator: str, tmp_path: Path) -> None:
    config = given(("credit.estimator", estimator), GROUPS)
    assert kl_weights(config) == (0.0, 0.02)
    assert kl_weights(round_trip(config, tmp_path)) == (0.0, 0.02)


def test_a_weight_that_is_given_stays_where_it_is() -> None:
    grpo = [("credit.estimator", "grpo"), GROUPS]
    assert kl_weights(given(*grpo, ("credit.kl_coef", "0.1"))) == (0.1, 0.0)
    assert kl_weights(given(*grpo, ("credit.kl_coef", "0"))) == (0.0, 0.0)
    assert kl_weights(given(*grpo, ("actor.kl_loss_coef", "0.001"))) == (0.0, 0.001)


def test_a_recipe_s_kl_for_gae_is_not_taken_over_by_grpo(tmp_path: Path) -> None:
    recipe = tmp_path / "gae.toml"
    recipe.write_text("[credit]\nkl_coef = 0.05\n[rollout]\nn = 4\n")
    assert kl_weights(load_config(recipe)) == (0.05, 0.0)
    assert kl_weights(load_config(recipe, [("credit.estimator", "rloo")])) == (0.05, 0.0)
    assert kl_weights(load_config(recipe, [("credit.estimator", "grpo")])) == (0.0, 0.02)


def test_kl_inside_the_outcome_of_grpo_is_warned_about() -> None:
    grpo = [("credit.estimator", "grpo"), GROUPS]
    assert warnings(given(*grpo), 0, None, []) == []
    (said,) = warnings(given(*grpo, ("credit.kl_coef", "0.1")), 0, None, [])
    assert "credit.kl_coef = 0.1" in said
    assert "actor.kl_loss_coef" in said
