"""Runs a function in several processes that form a process group over gloo, without Ray."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# One server process imports torch; the ranks are its forks.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["telescope.models.load", "torch.distributed.fsdp"])


def together(count: int, folder: Path, job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `job(*arguments)` returns on each of `count` ranks."""
    folder.mkdir(exist_ok=True)
    ranks = [
        PROCESSES.Process(target=_rank, args=(rank, count, folder, job, arguments))
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    said = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]
    for error, _ in said:
        assert error is None, error
    return [result for _, result in said]


def _rank(rank: int, count: int, folder: Path, job: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    error = result = None
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'rendezvous'}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=120),
        )
        result = job(*arguments)
        dist.destroy_process_group()
    except Exception:
        error = traceback.format_exc()
    torch.save((error, result), folder / f"{rank}.pt")
