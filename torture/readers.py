"""Readers beside a run that writes: commands, and the page's addresses, again and again."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from torture.processes import Command
from torture.table import Row
from torture.workshop import Workshop


def torture(shop: Workshop, count: int) -> Row:
    row = Row("readers during writes")
    while shop.goes_on(row, count):
        run = shop.new_run("readers", **{"checkpoint.keep": "1", "checkpoint.every": "1"})
        run.mkdir()
        (run / "ledger").mkdir()  # so that the page can be opened before the first step
        port = _free_port()
        page = Command(["view", str(run), "--port", str(port)], shop.folder / "view.txt")
        training = shop.start(run)
        try:
            while training.wait_or(0.05):
                _read(shop, run, row)
                _visit(port, row)
        finally:
            os.kill(page.pid, signal.SIGTERM)
            ended = page.wait()
        row.look(ended, "the page")
        row.look(training.wait(), "the run that is read")
        _visit(port, row)
        row.compare(_without_checkpoints(shop.differences(run)), "a run that was read")
    return row


def _without_checkpoints(differences: list[str]) -> list[str]:
    """The undisturbed run keeps other checkpoints; the last one is the same."""
    return [name for name in differences if not name.startswith("step_000004")]


def _read(shop: Workshop, run: Path, row: Row) -> None:
    command = shop.chance.choice(["eval", "explain", "doctor"])
    ended = Command([command, str(run)], shop.folder / "said.txt").wait()
    row.faults += 1
    row.look(ended, f"{command} beside a run")


def _visit(port: int, row: Row) -> None:
    """Asks the page for everything that it has. No answer may be an error of the server."""
    home = f"http://127.0.0.1:{port}/api/runs/run"
    _get(home, row)
    _get(f"{home}/metrics", row)
    for step in (1, 3, 5):
        _get(f"{home}/steps/{step}", row)
    found = _get(f"{home}/prompts", row) or {"prompts": []}
    for prompt in found["prompts"][:2]:
        _get(f"{home}/prompts/{prompt['key']}", row)


def _get(address: str, row: Row) -> Any:
    row.faults += 1
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            row.tracebacks.append(f"{address}: HTTP {error.code}: {error.read()[:300]!r}")
    except OSError:  # the page has not started, or has ended
        time.sleep(0.05)
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
