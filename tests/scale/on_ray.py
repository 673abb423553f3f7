"""A small run for Ray and for one process, and everything that three updates of it compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telescope.build import Roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.ledger.writer import Ledger
from telescope.run.checkpoint import shards_of
from tests.fakes import read_shards, tiny_config

SETTINGS = (("actor.epochs", "2"), ("actor.minibatches", "2"), ("critic.epochs", "2"), ("critic.minibatches", "3"),
            ("rollout.batch_size", "7"), ("actor.micro_batch_tokens", "40"), ("critic.micro_batch_tokens", "40"),
            ("data.max_prompt_tokens", "20"), ("actor.kl_loss_coef", "0.1"), ("actor.entropy_coef", "0.01"))  # fmt: skip


def reward(response_ids):
    return [len(set(ids)) / 6 for ids in response_ids]


def config_for(folder: Path, model: Path, *more: tuple[str, str]) -> Config:
    return tiny_config(folder, model, *SETTINGS, *more)


def three_updates(roles: Roles, config: Config) -> dict:
    """Everything a run of three updates computes."""
    train, _ = build_data(config, roles.actor.tokenizer)
    ledger = Ledger(config, roles.actor.tokenizer)
    out: dict = {"columns": [], "metrics": [], "notes": []}
    for step in range(3):
        batch = roles.actor.generate_sequences(train.take(range(step, step + 7), seed=step))
        batch = roles.reward.compute_reward(
            roles.reference.compute_log_prob(roles.critic.compute_values(batch))
        )
        batch = compute_advantages(batch, config.credit, kl_coef=0.05)
        out["metrics"].append(
            roles.critic.update_critic(batch, ledger) | roles.actor.update_actor(batch, ledger)
        )
        out["columns"].append({name: batch[name] for name in batch})
        out["notes"].append(ledger.table(step, batch, kl_coef=0.05).to_pylist())
    for role in ("actor", "critic"):
        getattr(roles, role).save(shards_of(config.run_dir, role))
        out[role] = read_shards(config.run_dir, role)
    return out


def close(one, other, path: str = "") -> None:
    """Equal up to 1e-5, through dicts and lists."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            close(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other, strict=True)):
            close(*pair, f"{path}/{number}")
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=1e-5, msg=lambda text: f"{path}: {text}"
        )
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5), path
    else:
        assert one == other, path
