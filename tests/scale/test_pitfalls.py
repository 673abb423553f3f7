"""The rows of tests/test_pitfalls.py that need several ranks, on two workers. The docstring names where it happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from time import monotonic

import pytest
import torch

from telescope.batch import TokenBatch
from telescope.build import Roles, build_local_roles, build_ray_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.errors import WorkerError
from telescope.roles.learner import balance
from tests.fakes import write_tiny_model
from tests.scale.on_ray import config_for, reward

ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("ranks")
    one_update = (
        ("actor.epochs", "1"),
        ("actor.minibatches", "1"),
        ("critic.epochs", "1"),
        ("critic.minibatches", "1"),
    )
    return config_for(
        folder,
        write_tiny_model(folder / "tiny"),
        *one_update,
        ("ray.workers", "2"),
        ("ray.timeout", "240"),
    )


@pytest.fixture(scope="module")
def two(config: Config) -> Iterator[Roles]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    roles = build_ray_roles(config, reward)
    yield roles
    roles.close()
    ray.shutdown()


@pytest.fixture(scope="module")
def one(config: Config) -> Roles:
    return build_local_roles(config, reward)


def batch_of(roles: Roles, config: Config) -> TokenBatch:
    prompts = build_data(config, roles.actor.tokenizer)[0].take(range(7), seed=3)
    batch = roles.critic.compute_values(roles.actor.generate_sequences(prompts))
    batch = roles.reward.compute_reward(roles.reference.compute_log_prob(batch))
    return compute_advantages(batch, config.credit, kl_coef=0.05)


def test_4_whitening_sees_the_tokens_of_all_ranks(two: Roles, config: Config) -> None:
    """miles PR 3229, ROLL 475: statistics per rank or shard."""
    batch = batch_of(two, config)
    tokens = batch["whitened"][batch.mask]
    assert tokens.mean() == pytest.approx(0, abs=1e-5)
    assert tokens.std() == pytest.approx(1, abs=1e-3)
    assert len(batch["whiten_mean"].unique()) == len(batch["whiten_std"].unique()) == 1


def test_8_rows_come_back_in_their_own_order(one: Roles, two: Roles, config: Config) -> None:
    """JustRL 5: results of length-balanced parts were not un-shuffled."""
    batch, alone = batch_of(two, config), batch_of(one, config)
    assert [row for part in balance(batch.row_lengths(), 2) for row in part] != list(
        range(7)
    )  # balancing moves rows
    for name in ("responses", "values", "ref_log_prob", "old_log_probs", "advantages"):
        torch.testing.assert_close(batch[name], alone[name], rtol=1e-4, atol=1e-5)
    assert [row.response for row in batch.info] == [row.response for row in alone.info]


def test_5_and_6_the_gradient_has_one_denominator_counted_over_all_ranks(
    one: Roles, two: Roles, config: Config
) -> None:
    """verl 6957, 7200, 3332, prime-rl 583: it depended on the number of ranks; verl 4852: counted before masking."""
    batch = batch_of(one, config)
    cut = batch["response_mask"].clone()
    cut[0, 1:] = 0  # ranks with very different numbers of tokens
    columns = {name: batch[name] for name in batch if name != "response_mask"}
    columns["token_level_scores"] = columns["token_level_scores"].masked_fill(cut == 0, 0.0)
    batch = TokenBatch({"response_mask": cut, **columns}, batch.info)
    for role in ("critic", "actor"):
        ours, alone = (
            getattr(getattr(roles, role), f"update_{role}")(batch) for roles in (two, one)
        )
        assert ours == {
            name: pytest.approx(value, rel=1e-4, abs=1e-6) for name, value in alone.items()
        }
        assert alone[f"{role}/grad_norm"] > 0


def test_21_a_dead_worker_ends_the_step_with_its_name(two: Roles, config: Config) -> None:
    """OpenRLHF 331, 663, 918; verl 1512, 3324: an endless wait."""
    prompts = build_data(config, two.actor.tokenizer)[0].take(range(7), seed=3)
    os.kill(ray.get(two.actor.group.workers[1].pid.remote()), signal.SIGKILL)
    began = monotonic()
    with pytest.raises(
        WorkerError,
        match=r"a worker (died|lost its connection to another) during `call actor generate_sequences`",
    ):
        two.actor.generate_sequences(prompts)
    assert monotonic() - began < config.ray.timeout
