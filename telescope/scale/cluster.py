"""The connection to a Ray cluster."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from telescope.config import Config
from telescope.config.paths import beside_recipe
from telescope.errors import TelescopeError, WorkerError, pip_install

_WORKER_SETTINGS = ("workers", "critic_workers", "samplers", "reward_workers")


def connect(config: Config) -> bool:
    """Joins the cluster, or starts one on this machine; says whether the workers get GPUs."""
    address = config.ray.address or os.environ.get("RAY_ADDRESS")
    if address is None:
        _require_token()
    try:
        import ray
    except ImportError:
        raise TelescopeError(f"backend = 'ray' needs Ray: {pip_install('ray')}") from None
    counts = {f"ray.{name}": getattr(config.ray, name) for name in _WORKER_SETTINGS}
    workers = sum(counts.values())
    if not ray.is_initialized():
        _start_ray(address, workers)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = sum(int(node.get("CPU", 0)) for node in nodes)
    gpus = 0 if config.device == "cpu" else sum(int(node.get("GPU", 0)) for node in nodes)
    asked = " + ".join(f"{name} = {count}" for name, count in counts.items() if count)
    _check_room("CPU", cpus, workers, asked, len(nodes))
    if gpus:
        shared = config.ray.workers_per_gpu
        _check_room("GPU", gpus, -(-workers // shared), asked, len(nodes))
    return gpus > 0


def _start_ray(address: str | None, workers: int) -> None:
    import ray

    settings: dict[str, Any]
    if address:
        settings = {"address": address}
    else:
        settings = {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, workers),
            "include_dashboard": False,
        }
    settings |= {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        try:
            ray.init(**settings)
        except Exception as error:  # Ray has a plain one for a node that is not up within 30 s
            if "timed out" not in str(error) or address:
                raise
            ray.shutdown()
            ray.init(**settings)  # the machine is busy: now the programs are in memory
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if address is None:
            raise TelescopeError(
                f"cannot start a Ray cluster on this machine: {reason}; "
                "if it is busy, try again with --resume"
            ) from error
        raise TelescopeError(
            f"cannot join the Ray cluster at {address}: {reason}; a cluster that was started with "
            "an authentication token needs RAY_AUTH_MODE=token here too"
        ) from error


def _require_token() -> None:
    """Lets only processes of this run into a cluster that it starts.

    Ray listens on all interfaces, and whoever reaches it can run code. These variables are read
    when it is imported.
    """
    if "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _check_room(kind: str, available: int, workers: int, asked: str, nodes: int) -> None:
    if available < workers:
        plural = "s" if nodes > 1 else ""
        raise WorkerError(
            f"{asked} needs {workers} {kind}s, and the cluster has {available} "
            f"on {nodes} node{plural}: ask for fewer workers, or add nodes"
        )


def with_absolute_paths(config: Config) -> Config:
    """Makes paths in the config absolute: workers have a working folder of their own."""
    used = config.model_dump(include={"model", "reward", "rollout"})
    absolute = beside_recipe(used, Path.cwd())
    sections = {
        name: getattr(config, name).model_copy(update=values) for name, values in absolute.items()
    }
    return config.model_copy(update=sections)
