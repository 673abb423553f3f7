"""Busy cores: other processes take the time of every core while a run trains."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from torture.table import Row
from torture.workshop import Workshop


def torture(shop: Workshop, count: int) -> Row:
    row = Row("busy cores")
    while shop.goes_on(row, count):
        run = shop.new_run("busy")
        with burning((os.cpu_count() or 1) * 2):
            shop.resume(run, row, "on busy cores")
        row.faults += 1
    return row


@contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that compute without end."""
    children = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            while True:
                pass
        children.append(pid)
    try:
        yield
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
