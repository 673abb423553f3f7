"""PPO post-training in which every token's credit can be seen, recomputed and explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from telescope.config import Config as Config
    from telescope.config import load_config as load_config
    from telescope.errors import TelescopeError as TelescopeError
    from telescope.peers import record as record
    from telescope.peers import watch as watch
    from telescope.run.callbacks import Callback as Callback
    from telescope.run.callbacks import Event as Event
    from telescope.run.evaluate import evaluate_run as evaluate_run
    from telescope.run.export import export_run as export_run
    from telescope.trainer import Trainer as Trainer

__version__ = "0.1.0"
_HOMES = {
    "Callback": "run.callbacks",
    "Config": "config",
    "Event": "run.callbacks",
    "TelescopeError": "errors",
    "Trainer": "trainer",
    "evaluate_run": "run.evaluate",
    "export_run": "run.export",
    "load_config": "config",
    "record": "peers",
    "watch": "peers",
}
__all__ = list(_HOMES)


def _openmp_settings(cores: int, loadavg: str, cpu_max: str) -> dict[str, str]:
    """How torch's threads on the CPU should behave here: variables that OpenMP reads.

    While they wait for each other, OpenMP's threads spin, which takes the cores from those that
    have work. So if other processes keep half of the cores or more busy, they sleep instead; alone
    that would be slower. A container with a share of the cores gets as many threads.
    `loadavg` and `cpu_max` are what Linux writes into the files of these names.
    """
    found = {}
    running = loadavg.split()[3].partition("/")[0] if loadavg else "1"
    others = int(running) - 1  # this process is one of them
    if others >= max(cores / 2, 1):
        found["OMP_WAIT_POLICY"] = "passive"
    quota, _, period = cpu_max.partition(" ")
    if quota.isdecimal() and int(quota) < cores * int(period):
        found["OMP_NUM_THREADS"] = str(max(int(quota) // int(period), 1))
    return found


def _set_up_openmp() -> None:
    """Sets what the user has not set. OpenMP reads it once, when torch is imported."""
    import os
    from pathlib import Path

    texts = []
    for path in (Path("/proc/loadavg"), Path("/sys/fs/cgroup/cpu.max")):
        texts.append(path.read_text("ascii").strip() if path.is_file() else "")
    has_policy = {"GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"} & os.environ.keys()
    for name, value in _openmp_settings(os.cpu_count() or 1, *texts).items():
        if name != "OMP_WAIT_POLICY" or not has_policy:
            os.environ.setdefault(name, value)


_set_up_openmp()

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Imports on first use: `telescope --help` must not wait for torch."""
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module 'telescope' has no attribute {name!r}")
        return getattr(importlib.import_module(f"telescope.{_HOMES[name]}"), name)

    def __dir__() -> list[str]:
        """Completion in a notebook lists what has not been imported yet, too."""
        return sorted({*globals(), *__all__})
