"""Signals at random moments, again and again, until the run is done."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torture.table import Row
from torture.workshop import Workshop

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOST = 8
"""Signals that one run gets."""


def torture(shop: Workshop, count: int) -> Row:
    row = Row("signals (KILL, TERM, INT, HUP)")
    while shop.goes_on(row, count):
        run = shop.new_run("signals")
        names = _disturb(shop, run, row, min(MOST, count - row.faults))
        shop.resume(run, row, f"after {', '.join(names)}")
    return row


def _disturb(shop: Workshop, run: Path, row: Row, most: int) -> list[str]:
    """Starts the run and sends a signal, up to `most` times. Returns the signals' names."""
    names: list[str] = []
    for _ in range(most):
        number = shop.chance.choice(SIGNALS)
        command = shop.start(run)
        moment = shop.chance.uniform(0, shop.seconds)
        if not command.wait_or(moment):
            shop.seconds *= 0.8  # it was too late: the machine is less busy than at first
            row.look(command.wait(), "undisturbed")
            break
        os.kill(command.pid, number)
        row.faults += 1
        shop.seconds *= 1.02
        names.append(f"{number.name} at {moment:.2f} s")
        row.look(command.wait(), names[-1])
    return names
