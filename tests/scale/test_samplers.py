"""Workers that only sample: they follow the policy that is trained elsewhere, and may do so one step behind."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from telescope import ledger
from telescope.build import build_local_roles, build_ray_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.trainer import Trainer
from tests.fakes import write_tiny_model
from tests.scale.on_ray import close, config_for, reward, three_updates

ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def apart(folder: Path, model: Path, *more: tuple[str, str]) -> Config:
    return config_for(folder, model, ("backend", "ray"), ("eval.samples", "4"), *more)


@pytest.mark.parametrize("rank", ["0", "3"], ids=["", "lora"])
def test_samplers_write_what_the_trained_policy_would(
    rank: str, tmp_path: Path, model: Path
) -> None:
    """Over three updates, so that twice the weights have to be renewed."""
    if rank != "0":
        pytest.importorskip("peft")
    config = apart(
        tmp_path,
        model,
        ("ray.workers", "2" if rank == "0" else "1"),
        ("ray.samplers", "2"),
        ("model.lora_rank", rank),
    )
    alone = config.model_copy(update={"backend": "local"})
    expected = three_updates(build_local_roles(alone, reward), alone)
    roles = build_ray_roles(config, reward)
    try:
        got = three_updates(roles, config)
    finally:
        roles.close()
    close(expected, got)
    assert [columns["policy_version"].unique().tolist() for columns in got["columns"]] == [
        [0],
        [1],
        [2],
    ]


def trained(config: Config, scoring=reward) -> Trainer:
    trainer = Trainer(config, reward={"score": scoring})
    trainer.fit()
    trainer.roles.close()
    return trainer


def test_ahead_the_policy_is_one_update_old_and_every_sample_says_so(
    tmp_path: Path, model: Path
) -> None:
    config = apart(
        tmp_path,
        model,
        ("ray.samplers", "1"),
        ("rollout.one_step_off_policy", "true"),
        ("steps", "4"),
    )
    rows = [row for row in trained(config).history() if "actor/pg_loss" in row]
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 1, 1]
    versions = [
        ledger.read(config.run_dir, step, ["policy_version"])["policy_version"].to_pylist()
        for step in (1, 2, 3, 4)
    ]
    assert versions == [[v] * 7 for v in (0, 0, 1, 2)]
    gaps = [row["rollout/logprob_diff"] for row in rows]
    assert gaps[0] < 1e-4 < min(gaps[1:])  # the gap is what the sampler's age makes of it
    assert all(row["actor/ppo_kl"] is not None for row in rows)


def test_a_sampler_that_dies_is_replaced_and_the_run_goes_on(tmp_path: Path, model: Path) -> None:
    config = apart(
        tmp_path, model, ("ray.samplers", "1"), ("steps", "2"), ("checkpoint.every", "1")
    )
    running: list[Trainer] = []

    def deadly(response_ids):
        if running and running[0].step == 1 and not running[0].restarts:
            os.kill(
                ray.get(running[0].roles.actor.samplers.workers[0].pid.remote()), signal.SIGKILL
            )
        return reward(response_ids)

    trainer = Trainer(config, reward={"score": deadly})
    running.append(trainer)
    trainer.fit()
    trainer.roles.close()
    assert trainer.restarts == 1
    assert [row["step"] for row in trainer.history() if "actor/pg_loss" in row] == [1, 2]


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"
)
@pytest.mark.parametrize("samplers", ["1", "0"], ids=["own workers", "colocated"])
def test_vllm_on_ray_follows_the_policy(samplers: str, tmp_path: Path) -> None:
    """What it says of its tokens is what the sliced policy says of them, after updates too."""
    folder = write_tiny_model(
        tmp_path / "model", hidden=64
    )  # heads of 32: the smallest that vLLM has for CPUs
    config = apart(
        tmp_path,
        folder,
        ("rollout.engine", "vllm"),
        ("ray.samplers", samplers),
        ("ray.workers", "2"),
        ("actor.lr", "1e-2"),
    )
    roles = build_ray_roles(config, reward)
    train, _ = build_data(config, roles.actor.tokenizer)
    try:
        for step in range(3):
            batch = roles.actor.generate_sequences(train.take(range(step, step + 7), seed=step))
            assert batch["policy_version"].unique().tolist() == [step]
            torch.testing.assert_close(
                batch["rollout_log_probs"], batch["old_log_probs"], rtol=1e-4, atol=1e-4
            )
            batch = roles.reward.compute_reward(
                roles.reference.compute_log_prob(roles.critic.compute_values(batch))
            )
            roles.actor.update_actor(compute_advantages(batch, config.credit, kl_coef=0.05))
    finally:
        roles.close()
