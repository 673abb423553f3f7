"""What NCCL does otherwise than gloo, checked by fakes: this machine has no two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from telescope.config import Config, ModelConfig, load_config
from telescope.errors import TelescopeError, WorkerError
from telescope.models.load import load_sharded, new_policy
from telescope.models.parallel import ProcessGroup, full_tensor
from telescope.roles.meter import Mean, Meter
from telescope.scale import worker as worker_module
from telescope.scale.group import _task_error
from telescope.scale.samplers import WeightChannel
from telescope.scale.worker import Worker

GPU = torch.device("cuda")
CPU = torch.device("cpu")


def ray_config(*settings: tuple[str, str]) -> Config:
    return load_config(None, [("backend", "ray"), ("ray.timeout", "45"), *settings])


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Calls that set up process groups, none of which happens."""
    calls: list[tuple[str, Any]] = []

    class Group:
        def __init__(self, *_: Any) -> None:
            self.mesh = SimpleNamespace(get_all_groups=lambda: ["copies", "shards"])
            self.sequence = SimpleNamespace(group="tokens")

    def start(backend: str, **settings: Any) -> None:
        calls.append((backend, settings["timeout"]))

    def limit(timeout: timedelta, group: Any) -> None:
        calls.append((group, timeout))

    monkeypatch.setattr(dist, "init_process_group", start)
    monkeypatch.setattr(worker_module, "ProcessGroup", Group)
    monkeypatch.setattr(worker_module, "_set_pg_timeout", limit)
    return calls


@pytest.mark.parametrize(
    ("device", "workers_per_gpu", "backend"),
    [
        (GPU, "1", "cpu:gloo,cuda:nccl"),  # NCCL refuses tensors of the CPU, which counts are
        (GPU, "2", "gloo"),  # NCCL refuses two ranks on one GPU
        (CPU, "1", "gloo"),
    ],
)
def test_a_worker_joins_with_a_backend_for_every_tensor_it_has(
    joined: list[tuple[str, Any]], device: torch.device, workers_per_gpu: str, backend: str
) -> None:
    worker = Worker()
    worker.config = ray_config(("ray.workers_per_gpu", workers_per_gpu))
    worker.device = device
    worker._join_process_group(0, 2, "127.0.0.1:1")
    assert joined[0] == (backend, timedelta(seconds=45))


def test_groups_of_shards_copies_and_tokens_wait_as_long_as_the_whole_group(
    joined: list[tuple[str, Any]],
) -> None:
    """torch gives groups of a mesh its own default: 10 minutes for NCCL, 30 for gloo."""
    worker = Worker()
    worker.config = ray_config()
    worker.device = GPU
    worker._join_process_group(0, 4, "127.0.0.1:1")
    limit = timedelta(seconds=45)
    assert joined[1:] == [("copies", limit), ("shards", limit), ("tokens", limit)]


def test_counts_and_metrics_are_reduced_on_the_cpu() -> None:
    reduced: list[Any] = []
    ranks = ProcessGroup.__new__(ProcessGroup)
    ranks._dist = SimpleNamespace(
        all_reduce=lambda tensor, *_: reduced.append(tensor), ReduceOp=dist.ReduceOp
    )
    assert ranks.max(3) == 3
    mean = Mean(ranks)
    mean.add(torch.tensor(4.0), torch.tensor(2))
    mean.value()
    meter = Meter(ranks)
    meter.once("one", 2.0)
    meter.result()
    assert reduced
    assert {tensor.device for tensor in reduced} == {CPU}


# ---- PREMUL_SUM


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ProcessGroup]:
    """A group of one process."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield ProcessGroup(CPU)
    dist.destroy_process_group()


def test_gradients_are_plain_sums_which_gloo_has_too(
    tiny_model: Path, alone: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a factor, FSDP2 makes NCCL's PREMUL_SUM, and of no factor its average."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as fsdp

    set_to: dict[str, list[Any]] = {"factor": [], "force": []}
    monkeypatch.setattr(
        FSDPModule, "set_gradient_divide_factor", lambda _, to: set_to["factor"].append(to)
    )
    monkeypatch.setattr(
        FSDPModule, "set_force_sum_reduction_for_comms", lambda _, to: set_to["force"].append(to)
    )
    (model,), _ = load_sharded(new_policy, ModelConfig(path=str(tiny_model)), alone)
    modules = sum(isinstance(module, FSDPModule) for module in model.modules())
    assert set_to == {"factor": [1.0] * modules, "force": [True] * modules}

    class Two:
        def size(self) -> int:
            return 2

    def operations(factor: float | None, force: bool) -> tuple[Any, ...]:
        groups: Any = (Two(), None)
        return fsdp._get_gradient_divide_factors(*groups, torch.float32, "cuda", factor, force)

    assert operations(1.0, True) == (None, 1.0, dist.ReduceOp.SUM, dist.ReduceOp.SUM)
    assert operations(None, False)[2] == dist.ReduceOp.AVG
    assert operations(1.0, False)[2] not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)


# ---- weights on their way to samplers


class FakeNCCL:
    """A process group whose collectives only start: what arrives is there after `wait`."""

    made: list[tuple[Any, ...]]

    class Options:
        _timeout = timedelta(minutes=10)

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self.log: list[str] = []
        FakeNCCL.made.append((store, rank, size, options._timeout))

    def broadcast(self, value: torch.Tensor, root: int) -> SimpleNamespace:
        self.log.append(f"start from {root}")

        def wait() -> None:
            self.log.append("wait")
            value.fill_(7)

        return SimpleNamespace(wait=wait)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> type[FakeNCCL]:
    FakeNCCL.made = []
    monkeypatch.setattr(dist, "ProcessGroupNCCL", FakeNCCL, raising=False)
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **named: ("store", named["timeout"]))
    return FakeNCCL


def channel(*, nccl: bool) -> WeightChannel:
    return WeightChannel("127.0.0.1:1", 1, 3, CPU, timedelta(seconds=45), nccl=nccl)


def test_the_channel_has_a_communicator_of_its_own_with_our_timeout(nccl: type[FakeNCCL]) -> None:
    channel(nccl=True)
    limit = timedelta(seconds=45)
    assert nccl.made == [(("store", limit), 1, 3, limit)]


def test_a_weight_is_yielded_after_it_has_arrived(nccl: type[FakeNCCL]) -> None:
    sent = channel(nccl=True)
    seen = []
    for name, value in sent.receive([("a", (2,)), ("b", (1,))], torch.float32):
        seen.append((name, value.tolist(), list(sent.group.log)))
    one = ["start from 0", "wait"]
    assert seen == [("a", [7.0, 7.0], one), ("b", [7.0], one + one)]


@pytest.mark.parametrize("method", ["send_weights", "receive_weights"])
def test_weights_have_arrived_when_the_call_returns(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL only queues a broadcast: without this, a hang would be blamed on the next call."""
    log: list[str] = []
    fake = SimpleNamespace(
        broadcast=lambda value: log.append("start"),
        receive=lambda shapes, dtype: log.append("start"),
        finish=lambda: log.append("finish"),
    )
    worker = Worker()
    worker.config = ray_config()
    worker.device = GPU
    worker.channel = fake  # type: ignore[assignment]
    worker.roles = {
        "actor": SimpleNamespace(weights=lambda *_: [("a", torch.ones(1))]),
        "sampler": SimpleNamespace(load_weights=lambda *_: None),
    }
    arguments = {"send_weights": (), "receive_weights": ([("a", (1,))], 1)}[method]
    getattr(worker, method)(*arguments)
    assert log == ["start", "finish"]


def test_finishing_waits_for_the_gpu_and_not_for_a_cpu(
    nccl: type[FakeNCCL], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    on_cpu = channel(nccl=True)
    on_cpu.finish()
    assert waited == []
    on_cpu.device = GPU
    on_cpu.finish()
    assert waited == [GPU]


# ---- errors


@pytest.mark.parametrize(
    "message",
    [
        "NCCL error in: ProcessGroupNCCL.cpp:2418, remote process exited or there was a network error",
        "NCCL communicator was aborted on rank 0. Original reason for failure was: timeout",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=BROADCAST)",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]",
    ],
)
def test_what_a_collective_says_of_a_dead_rank_restarts_the_run(message: str) -> None:
    """A WorkerError is one after which the trainer starts workers again."""
    found = _task_error(SimpleNamespace(cause=RuntimeError(message)), "update actor")
    assert isinstance(found, WorkerError)
    assert "lost its connection to another during `update actor`" in str(found)


def test_an_error_of_the_work_itself_is_not_taken_for_a_dead_rank() -> None:
    found = _task_error(SimpleNamespace(cause=RuntimeError("shape mismatch")), "update actor")
    assert type(found) is TelescopeError


class OnGpu:
    """What `full_tensor` asks of a DTensor. It says where the gather takes place."""

    def __init__(self, *, sharded: bool, device: torch.device = GPU) -> None:
        self.device = device
        self.placements = [SimpleNamespace(is_shard=lambda: sharded)]
        self.device_mesh = SimpleNamespace(get_group=lambda _: None)

    def cpu(self) -> OnGpu:
        return OnGpu(sharded=True, device=CPU)

    def full_tensor(self) -> OnGpu:
        self.gathered_on = self.device
        return self

    def to(self, device: torch.device) -> OnGpu:
        self.device = device
        return self


@pytest.mark.parametrize(
    ("backend", "sharded", "where"),
    [
        ("gloo", True, CPU),  # its gather of a DTensor crashes on shards of a GPU
        ("gloo", False, GPU),  # a sum over the ranks does not
        ("nccl", True, GPU),  # NCCL takes no tensor of the CPU
    ],
)
def test_gloo_gathers_shards_of_a_gpu_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, backend: str, sharded: bool, where: torch.device
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: backend)
    value: Any = OnGpu(sharded=sharded)
    gathered: Any = full_tensor(value)
    assert gathered.gathered_on == where
    assert gathered.device == value.device == GPU
