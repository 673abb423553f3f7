"""Clusters without room and workers that die: the run waits, goes on by itself, or says what to do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from telescope.build import build_ray_roles
from telescope.errors import TelescopeError, WorkerError
from telescope.ledger import samples
from telescope.models import shards
from telescope.run.checkpoint import shards_of
from telescope.scale.roles import RayActor
from telescope.trainer import Trainer
from tests.scale.on_ray import close, config_for, reward

ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")
pytestmark = pytest.mark.usefixtures("cluster")


def test_more_workers_than_the_cluster_has_room_for_are_refused(
    tmp_path: Path, model: Path
) -> None:
    with pytest.raises(
        TelescopeError, match=r"ray\.workers = 99 needs 99 CPUs, and the cluster has 4 on 1 node"
    ):
        build_ray_roles(
            config_for(tmp_path, model, ("backend", "ray"), ("ray.workers", "99")), reward
        )
    with pytest.raises(
        TelescopeError,
        match=r"ray\.workers = 3 \+ ray\.critic_workers = 2 needs 5 CPUs, and the cluster has 4 on 1 node",
    ):
        build_ray_roles(
            config_for(
                tmp_path,
                model,
                ("backend", "ray"),
                ("ray.workers", "3"),
                ("ray.critic_workers", "2"),
            ),
            reward,
        )


def test_workers_whose_place_is_taken_are_waited_for_and_then_given_up(
    tmp_path: Path, model: Path
) -> None:
    taken = ray.util.placement_group([{"CPU": 1}] * 2)
    ray.get(taken.ready())
    told = "no room for the 3 workers of actor, reference, critic within 2 s .*: they need 3 CPUs, 2 CPUs are free, the cluster has 4 CPUs"
    with pytest.raises(WorkerError, match=told):
        build_ray_roles(
            config_for(
                tmp_path, model, ("backend", "ray"), ("ray.workers", "3"), ("ray.timeout", "2")
            ),
            reward,
        )
    ray.util.remove_placement_group(taken)


def history(trainer: Trainer) -> list[dict]:
    return [
        {k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))}
        for row in trainer.history()
    ]


def train_on_two(
    folder: Path,
    model: Path,
    scoring: Callable[..., list[float]],
    every: int,
    running: list[Trainer],
) -> Trainer:
    settings = (
        ("backend", "ray"),
        ("ray.workers", "2"),
        ("steps", "4"),
        ("checkpoint.every", str(every)),
        ("eval.samples", "4"),
    )
    trainer = Trainer(config_for(folder, model, *settings), reward={"score": scoring})
    running.append(trainer)
    trainer.fit()
    trainer.roles.close()
    return trainer


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, model: Path) -> list[dict]:
    return history(train_on_two(tmp_path_factory.mktemp("unbroken"), model, reward, 0, []))


@pytest.mark.parametrize("every", [1, 0])
def test_a_run_whose_worker_is_killed_goes_on_by_itself_to_the_same_metrics(
    every: int,
    tmp_path: Path,
    model: Path,
    unbroken: list[dict],
    capsys: pytest.CaptureFixture[str],
) -> None:
    running: list[Trainer] = []

    def deadly(response_ids):
        trainer = running[0]
        if trainer.step == 2 and not trainer.restarts:  # in the third step
            os.kill(ray.get(trainer.roles.actor.group.workers[1].pid.remote()), signal.SIGKILL)
        return reward(response_ids)

    killed = train_on_two(tmp_path, model, deadly, every, running)
    assert killed.restarts == 1
    close(unbroken, history(killed))
    out = capsys.readouterr().out
    assert "a worker died during" in out or "a worker lost its connection to another during" in out
    assert f"restart 1 of 3, from {'step_000002' if every else 'the beginning'}" in out


def test_after_too_many_restarts_the_run_ends_with_what_to_do(tmp_path: Path, model: Path) -> None:
    def deadly(response_ids):
        os.kill(ray.get(trainer.roles.actor.group.workers[0].pid.remote()), signal.SIGKILL)
        return reward(response_ids)

    config = config_for(
        tmp_path, model, ("backend", "ray"), ("ray.workers", "1"), ("ray.max_restarts", "1")
    )
    trainer = Trainer(config, reward={"score": deadly})
    with pytest.raises(
        TelescopeError,
        match=r"a worker .*; 1 restarts \(ray.max_restarts\) did not help: .* --resume",
    ):
        trainer.fit()
    trainer.roles.close()


def test_workers_write_into_the_run_folder_wherever_they_live(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the cluster was started elsewhere
    settings = (
        ("dir", "runs"),
        ("backend", "ray"),
        ("ray.workers", "1"),
        ("steps", "1"),
        ("eval.samples", "4"),
    )
    trainer = Trainer(config_for(tmp_path, Path(os.path.relpath(model)), *settings), reward=reward)
    trainer.fit()
    saved = tmp_path / "runs" / "run" / "checkpoints" / "step_000001"
    assert all(shards.is_complete(shards_of(saved, role)) for role in ("actor", "critic"))
    trainer.roles.close()


def test_what_a_broken_step_noted_is_not_recorded(tmp_path: Path, model: Path) -> None:
    config = config_for(
        tmp_path,
        model,
        ("backend", "ray"),
        ("ray.workers", "1"),
        ("steps", "2"),
        ("eval.samples", "4"),
    )
    trainer = Trainer(config, reward=reward)
    update = RayActor.update_actor

    def deadly(self, batch, ledger=None):
        if trainer.step == 1 and not trainer.restarts:
            os.kill(ray.get(self.group.workers[0].pid.remote()), signal.SIGKILL)
        return update(self, batch, ledger)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayActor, "update_actor", deadly)
        trainer.fit()
    trainer.roles.close()
    assert trainer.restarts == 1
    updates = samples(config.run_dir, 2)[0].critic_updates
    assert [(update.epoch, update.minibatch) for update in updates] == sorted(
        {(u.epoch, u.minibatch) for u in updates}
    )
