"""A cluster of two nodes, one of which dies."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from telescope import build
from telescope.config import Config, load_config
from telescope.errors import WorkerError
from telescope.scale.cluster import connect
from telescope.scale.group import WorkerGroup
from telescope.trainer import Trainer
from tests.fakes import tiny_config

ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")


def test_a_run_survives_the_death_of_a_node(tmp_path: Path, tiny_model: Path) -> None:
    from ray.cluster_utils import Cluster

    settings = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=settings)
    second = cluster.add_node(num_cpus=2)
    calls = []

    def reward(response_ids):
        calls.append(1)
        if len(calls) == 4:  # two evaluations, then the second step
            cluster.remove_node(second, allow_graceful=False)
        return [len(ids) / 6 for ids in response_ids]

    more = (
        ("backend", "ray"),
        ("ray.workers", "2"),
        ("ray.address", cluster.address),
        ("steps", "3"),
        ("eval.samples", "4"),
    )
    try:
        trainer = Trainer(tiny_config(tmp_path, tiny_model, *more), reward=reward)
        nodes = {ray.get(worker.node.remote()) for worker in trainer.roles.actor.group.workers}
        assert len(nodes) == 2  # one worker on each
        trainer.fit()
        assert (
            1 <= trainer.restarts <= 3
        )  # the first may meet the dead node again, before the cluster knows
        assert [row["step"] for row in trainer.history()] == [0, 1, 2, 3, 3]
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_workers_of_a_cluster_that_is_gone_are_closed_without_a_word() -> None:
    """What happens when a trainer is collected as garbage after another cluster was started."""

    @ray.remote(num_cpus=0)
    class Worker:
        pass

    try:
        ray.init(num_cpus=1, include_dashboard=False)
        group = WorkerGroup.__new__(WorkerGroup)
        group.workers = [Worker.remote()]
        group.placement = ray.util.placement_group([{"CPU": 1}])
        ray.shutdown()
        group.close()
        ray.init(num_cpus=1, include_dashboard=False)
        group.close()
    finally:
        ray.shutdown()


def test_places_that_the_cluster_has_lost_are_a_lost_worker() -> None:
    """Ray raises a plain Exception."""
    group = WorkerGroup.__new__(WorkerGroup)
    group.config = load_config(None, [])
    group.placement = SimpleNamespace(wait=_raise)
    with pytest.raises(WorkerError, match="has lost the workers' places: Placement group 7 does"):
        group._wait_for_placement({"CPU": 1}, 1, ["actor"])


@pytest.mark.parametrize(("per_gpu", "share"), [("1", 1.0), ("4", 0.25)])
def test_workers_that_share_a_gpu_ask_for_a_part_of_it(
    per_gpu: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's placement group and each worker's options, with a cluster that has no GPU."""
    asked: list[dict[str, float]] = []

    def placement_group(bundles: list[dict[str, float]], strategy: str) -> SimpleNamespace:
        asked.extend(bundles)
        return SimpleNamespace(wait=lambda timeout: False)

    monkeypatch.setattr(ray.util, "placement_group", placement_group)
    monkeypatch.setattr(ray.util, "remove_placement_group", lambda _: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 8, "GPU": 0.5})
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8, "GPU": 1})
    config = load_config(None, [("backend", "ray"), ("ray.workers_per_gpu", per_gpu)])
    needed = f"they need 4 CPUs, {4 * share:g} GPUs, 8 CPUs, 0.5 GPUs are free"
    with pytest.raises(WorkerError, match=needed):
        WorkerGroup(config, 4, ["actor"], gpus=True)
    assert asked == [{"CPU": 1, "GPU": share}] * 4


@pytest.mark.parametrize(
    ("per_gpu", "gpus", "refused"),
    [("1", 3, True), ("2", 2, False), ("4", 1, False), ("3", 1, True)],
)
def test_there_is_room_for_as_many_workers_as_share_the_gpus(
    per_gpu: str, gpus: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"Alive": True, "Resources": {"CPU": 8.0, "GPU": float(gpus)}}
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    settings = [("backend", "ray"), ("ray.workers", "4"), ("ray.workers_per_gpu", per_gpu)]
    config = load_config(None, settings)
    if not refused:
        assert connect(config)
        return
    with pytest.raises(WorkerError, match=rf"needs {4 if per_gpu == '1' else 2} GPUs"):
        connect(config)


def _raise(_: float) -> bool:
    raise Exception("Placement group 7 does not exist.\n")


def test_what_ray_draws_is_not_missing_in_the_reward_s_numbers(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(_: Config) -> bool:
        random.seed(1)
        raise WorkerError("no cluster")

    monkeypatch.setattr(build, "connect", connect)
    random.seed(7)
    expected = random.Random(7).random()
    with pytest.raises(WorkerError, match="no cluster"):
        build.build_ray_roles(tiny_config(tmp_path, tiny_model), lambda **_: [0.0])
    assert random.random() == expected
