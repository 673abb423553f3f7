"""A run that is small enough to enumerate: three tokens, three choices each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from telescope.config import Config
from telescope.trainer import Trainer
from tests.tiny import tiny_config

REWARD = '''
def taste(completions, response_ids):
    """A score between 0 and 1 that depends on every token."""
    return [(sum((k + 1) * token for k, token in enumerate(ids)) % 7) / 6 for ids in response_ids]
'''

Train = Callable[..., Config]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Train:
    """train(("steps", "2"), …): a finished run of three-token responses."""

    def make(*overrides: tuple[str, str]) -> Config:
        folder = tmp_path_factory.mktemp("audited")
        (folder / "reward.py").write_text(REWARD, "utf-8")
        settings = {
            "reward.functions": f"{folder / 'reward.py'}:taste",
            "rollout.max_response_tokens": "3",
            "rollout.top_k": "3",
            "rollout.temperature": "1.5",
            "steps": "3",
            "checkpoint.keep": "9",
            "actor.lr": "3e-2",
            "critic.lr": "3e-2",
        }
        config = tiny_config(folder, tiny_model, *settings.items(), *overrides)
        Trainer(config).fit()
        return config

    return make


@pytest.fixture(scope="session")
def critic_run(train: Train) -> Config:
    """With a critic, a discount and a KL penalty."""
    return train(("credit.gamma", "0.9"), ("credit.kl_coef", "0.1"))


@pytest.fixture(scope="session")
def group_run(train: Train) -> Config:
    """Groups of four, without a critic."""
    return train(("credit.estimator", "rloo"), ("rollout.n", "4"), ("rollout.batch_size", "4"))
