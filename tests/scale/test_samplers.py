"""Workers that only sample: they follow the policy that is trained elsewhere, and may do so one step behind."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from telescope import ledger
from telescope.batch import TokenBatch
from telescope.build import build_local_roles, build_ray_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.data.loader import Prompts
from telescope.scale.roles import RayActor
from telescope.trainer import Trainer
from tests.fakes import hand_batch, write_tiny_model
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


needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"
)


@needs_vllm
@pytest.mark.parametrize("samplers", ["1", "0"], ids=["own workers", "colocated"])
def test_vllm_on_ray_follows_the_policy(samplers: str, tmp_path: Path) -> None:
    """What it says of its tokens is what the sliced policy says of them, after updates too."""
    three_steps_with_vllm(tmp_path, ("ray.samplers", samplers))


@needs_vllm
def test_two_vllm_ranks_that_share_the_weights_write_what_one_would(tmp_path: Path) -> None:
    shared = ("ray.samplers", "2"), ("rollout.tensor_parallel_size", "2")
    together = three_steps_with_vllm(tmp_path / "together", *shared)
    alone = three_steps_with_vllm(tmp_path / "alone", ("ray.samplers", "1"))
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one["responses"], other["responses"])
        torch.testing.assert_close(
            one["rollout_log_probs"], other["rollout_log_probs"], rtol=1e-4, atol=1e-4
        )


def three_steps_with_vllm(folder: Path, *more: tuple[str, str]) -> list[TokenBatch]:
    """The batches; the sharded policy must say the same of vLLM's tokens as vLLM."""
    model = write_tiny_model(folder / "model", hidden=64)  # the smallest heads that vLLM has: 32
    config = apart(
        folder,
        model,
        ("rollout.engine", "vllm"),
        ("ray.workers", "2"),
        ("actor.lr", "1e-2"),
        *more,
    )
    batches = []
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
            batches.append(batch)
            roles.actor.update_actor(compute_advantages(batch, config.credit, kl_coef=0.05))
    finally:
        roles.close()
    return batches


def test_a_team_answers_the_same_rows_and_its_first_worker_reports_them() -> None:
    """Four workers, two to a sampler: each sampler gets half of the four prompts."""
    asked: list[Any] = []
    teams = SimpleNamespace(
        workers=[0, 1, 2, 3],
        team_size=2,
        start_all=lambda *_, each, **__: asked.extend(part.rows for (part,) in each) or [0] * 4,
    )
    actor = RayActor.__new__(RayActor)
    actor.samplers = teams  # type: ignore[assignment]
    actor.sent_version = 0
    actor.group = SimpleNamespace(  # type: ignore[assignment]
        call_all=lambda _: [0],
        wait_for=lambda *_: [hand_batch([[1], [1]], prompt=p) for p in (1, 2, 1, 2)],
    )
    prompts = Prompts(ids=[[5]] * 4, info={"prompt_index": [0, 1, 2, 3]}, seed=0)
    pending = actor._start("sample", prompts, greedy=False)
    assert asked[0] == asked[1]
    assert asked[2] == asked[3]
    assert sorted([*asked[0], *asked[2]]) == [0, 1, 2, 3]
    assert actor._collect(pending)["prompts"].shape == (4, 1)  # those of 0 and 2
