"""verl 0.9.1 on a CPU: a platform, FSDP2 over gloo, and a rollout backend in plain transformers.

For a dry run of benchmarks/verl_ppo.py without a GPU. verl imports this module in each of its
processes (VERL_USE_EXTERNAL_MODULES). Trainer, TransferQueue, agent loop, FSDP engines, losses and
advantages are verl's own; the rollout server stands in for vLLM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from telescope.peers.on_import import on_import

NOTHING = {
    "empty_cache": None,
    "ipc_collect": None,
    "reset_peak_memory_stats": None,
    "max_memory_allocated": 0,
    "max_memory_reserved": 0,
    "memory_allocated": 0,
    "memory_reserved": 0,
    "mem_get_info": (0, 0),
}
"""What verl asks of torch.cuda and torch.cpu does not have -> the answer."""


def register_platform(module: ModuleType) -> None:
    """Platform `cpu`. Ray is told of a GPU that is not there: its placement groups want one."""
    for name, answer in NOTHING.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda *_, answer=answer, **__: answer)

    class PlatformCPU(module.PlatformBase):  # type: ignore[name-defined, misc]
        device_name = "cpu"
        vendor_name = "cpu"
        device_module = torch.cpu

        def is_available(self) -> bool:
            return True

        def current_device(self) -> str:
            return "cpu"

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None:
            pass

        def synchronize(self, device_index: int | None = None) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        manual_seed_all = manual_seed

        def set_allocator_settings(self, settings: str) -> None:
            pass

        def empty_cache(self) -> None:
            pass

        def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        def ray_resource_name(self) -> str:
            return "GPU"

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

        @contextlib.contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None:
            pass

        def profiler_stop(self) -> None:
            pass

        def cudart(self) -> None:
            pass

    module.PlatformRegistry.register(platform="cpu")(PlatformCPU)


def gloo_only(module: ModuleType) -> None:
    """The default names the CPU's backend twice, once for the accelerator."""
    start = module.initialize_global_process_group_ray

    def started(timeout_second: Any = None, backend: str | None = None) -> None:
        start(timeout_second=timeout_second, backend=backend or "gloo")

    vars(module)["initialize_global_process_group_ray"] = started


def engines_on_cpu(module: ModuleType) -> None:
    """The FSDP engines are registered for cuda and npu; a parameter cannot be offloaded to here."""
    from verl.workers.engine.base import EngineRegistry

    for kinds in EngineRegistry._engines.values():
        for devices in kinds.values():
            if "cuda" in devices:
                devices.setdefault("cpu", devices["cuda"])
    vars(module)["CPUOffloadPolicy"] = lambda **_: None


def rollout_in_transformers(module: ModuleType) -> None:
    module._ROLLOUT_REGISTRY["transformers", "async"] = "benchmarks._verl_server.Adapter"


def server_in_transformers(module: ModuleType) -> None:
    def load() -> Any:
        from benchmarks._verl_server import Replica

        return Replica

    module.RolloutReplicaRegistry.register("transformers", load)


PATCHES = {
    "verl.plugin.platform.platform_manager": register_platform,
    "verl.utils.distributed": gloo_only,
    "verl.workers.engine.fsdp.transformer_impl": engines_on_cpu,
    "verl.workers.rollout.base": rollout_in_transformers,
    "verl.workers.rollout.replica": server_in_transformers,
}

on_import(PATCHES)
