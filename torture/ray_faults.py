"""Faults of a Ray cluster during training: the run goes on by itself, or `--resume` goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

from torture.processes import Command, Ended, in_child
from torture.table import Row
from torture.workshop import Workshop, contents, differing

SETTINGS = {
    "backend": "ray",
    "ray.workers": "2",
    "ray.timeout": "240",
    "steps": "3",
    "checkpoint.every": "1",
    "reward.normalise": "true",
}
FAULTS = ("worker", "suspended", "stuck", "raylet", "gcs", "controller", "node")
"""suspended: a worker stands still for a while; stuck: it never goes on."""
PATTERNS = {
    "worker": "ray::Worker",
    "suspended": "ray::Worker",
    "stuck": "ray::Worker",
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
    "node": "raylet/raylet",
}
_LONGEST = 900.0


def torture(shop: Workshop, count: int) -> Row:
    row = Row("Ray: worker, suspended, stuck, raylet, GCS, controller, node")
    expected = None
    while shop.goes_on(row, count):
        fault = FAULTS[row.faults % len(FAULTS)]
        if expected is None:
            run = shop.new_run("ray", **SETTINGS)
            ended = _start(shop, run).wait(_LONGEST)
            assert ended.code == 0, ended.said
            expected = in_child(partial(contents, run))
        patience = {"ray.timeout": "60"} if fault == "stuck" else {}
        run = shop.new_run("ray", **SETTINGS | patience)
        ended, what = _disturb(shop, run, fault, row)
        if ended.code:  # else it went on by itself
            ended = _start(shop, run, "--ray.timeout", "240").wait(_LONGEST)
            row.look(ended, f"resumed after {what}")
        if ended.code:
            row.not_ended(ended, what)
        else:
            row.compare(differing(in_child(partial(contents, run)), expected), what)
    return row


def _start(shop: Workshop, run: Path, *more: str, nodes: int = 1) -> Command:
    def begin() -> None:
        os.environ.update({"RAY_worker_register_timeout_seconds": "240"})  # a busy machine
        if nodes > 1:
            from ray.cluster_utils import Cluster

            settings = {"num_cpus": 2, "include_dashboard": False}
            cluster = Cluster(initialize_head=True, head_node_args=settings)
            cluster.add_node(num_cpus=2)
            os.environ["RAY_ADDRESS"] = cluster.address

    return shop.start(run, *more, before=begin)


def _disturb(shop: Workshop, run: Path, fault: str, row: Row) -> tuple[Ended, str]:
    """Trains with one fault, until the run ends or dies. Returns its end, and what was done."""
    command = _start(shop, run, nodes=2 if fault == "node" else 1)
    _wait_for_rows(command, run, shop.chance.randint(2, 3))
    time.sleep(shop.chance.uniform(0, 1.0))
    family = _descendants(command.pid)
    if fault == "controller":
        os.kill(command.pid, signal.SIGKILL)
    else:
        found = [pid for pid in family if PATTERNS[fault] in _command_line(pid)]
        if found:
            _hurt(max(found) if fault == "node" else shop.chance.choice(found), fault)
    row.faults += 1
    ended = command.wait(_LONGEST)
    _end(family)
    row.look(ended, fault)
    return ended, f"{fault} (exit code {ended.code}, {run.name} at {_rows(run)} rows)"


def _hurt(pid: int, fault: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        if fault not in ("suspended", "stuck"):
            os.kill(pid, signal.SIGKILL)
            return
        os.kill(pid, signal.SIGSTOP)
        if fault == "suspended":
            time.sleep(4)
            os.kill(pid, signal.SIGCONT)


def _wait_for_rows(command: Command, run: Path, count: int) -> None:
    while _rows(run) < count and command.wait_or(0.1):
        pass


def _rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def _end(family: list[int]) -> None:
    """Waits until the cluster's processes are gone; ends those that stay."""
    known = {pid: _command_line(pid) for pid in family}
    until = time.monotonic() + 20
    while time.monotonic() < until and any(_command_line(pid) for pid in family):
        time.sleep(0.2)
    for pid, line in known.items():
        if line and _command_line(pid) == line:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
