"""One HTML file that holds a run's page. It opens from disk and asks no network."""

from __future__ import annotations

from pathlib import Path

from telescope.errors import TelescopeError


def write_report(run: Path, out: Path) -> Path:
    raise TelescopeError("not yet")
