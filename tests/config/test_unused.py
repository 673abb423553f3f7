"""Settings that a run does not read are named once, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.config import smoke
from telescope.config.unused import unused
from tests.config.configs import given, round_trip, typed

GRPO = "credit.estimator=grpo rollout.n=4"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            f"{GRPO} critic.lr=1e-4 critic.epochs=3",
            "critic.lr, critic.epochs: does nothing here, because "
            "credit.estimator = 'grpo' has no critic",
        ),
        (
            f"{GRPO} critic.lr=1e-5",  # the default
            "critic.lr: does nothing here, because credit.estimator = 'grpo' has no critic",
        ),
        (
            "credit.estimator=rloo rollout.n=4 critic.head_init=zero critic.loss=mse",
            "critic.head_init: does nothing here, because credit.estimator = 'rloo' has no critic",
        ),
        ("ray.workers=2", "ray.workers: does nothing here, because backend = 'local'"),
        ("log.tags=a", "log.tags: does nothing here, because log.trackers is empty"),
        (
            "log.trackers=tensorboard log.group=a",
            "log.group: does nothing here, because tensorboard has no such thing",
        ),
        (
            "log.trackers=trackio log.tags=a",
            "log.tags: does nothing here, because only W&B has tags",
        ),
        (
            "credit.kl_horizon=5",
            "credit.kl_horizon: does nothing here, because credit.kl_target is not set",
        ),
        (
            "actor.importance_cap=5",
            "actor.importance_cap: does nothing here, because actor.importance = 'off'",
        ),
        (
            "reward.functions=a.py:f reward.retries=9",
            "reward.retries: does nothing here, because no reward is a server or a judge",
        ),
    ],
)
def test_a_setting_that_is_not_read_is_named(settings: str, line: str) -> None:
    assert unused(given(*typed(settings))) == [line]


@pytest.mark.parametrize(
    "settings",
    [
        "",
        GRPO,
        "critic.lr=1e-4",
        "backend=ray ray.workers=2",
        "log.trackers=wandb log.tags=a",
        "reward.functions=judge reward.retries=9",
        "reward.functions=s=https://host/x reward.timeout=9",
    ],
)
def test_settings_that_are_read_are_not_named(settings: str) -> None:
    assert unused(given(*typed(settings))) == []


def test_a_setting_at_its_default_is_named_only_before_the_run_is_saved(tmp_path: Path) -> None:
    config = given(*typed(f"{GRPO} critic.lr=1e-5"))
    assert len(unused(config)) == 1
    assert unused(round_trip(config, tmp_path)) == []


def test_a_smoke_run_names_no_setting_that_it_cut_itself() -> None:
    assert unused(smoke(given())) == []
    assert unused(smoke(given(*typed(GRPO)))) == []
