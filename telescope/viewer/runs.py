"""A folder of runs, or one run. A run is named by its folder's name, never by a path."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from telescope.errors import TelescopeError
from telescope.viewer.payload import shorten_text
from telescope.viewer.run_data import RunData
from telescope.viewer.settings_list import shown
from telescope.viewer.status import FILES_OF_A_RUN, is_run

_OWN = ("name", "dir")
"""Settings that every run has of its own."""


class Runs:
    """The runs that a page shows. New ones are found, deleted ones stay listed as deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.single = folder.is_dir() and is_run(folder)
        self._known: dict[str, RunData] = {}
        self._lock = Lock()
        if self.single or not folder.is_dir():
            run = RunData(folder)
            self._known[run.id] = run
        elif not self.found():
            files = " or ".join(FILES_OF_A_RUN)
            raise TelescopeError(
                f"{folder} is not a run folder: it has no {files}, and neither has a folder in it; "
                "give one like runs/arithmetic-seed0"
            )

    def found(self) -> list[RunData]:
        """Every run that was ever seen, in the order of names; looks for new ones."""
        with self._lock:
            if not self.single:
                for name in _run_folders(self.folder):
                    if name not in self._known:
                        self._known[name] = RunData(self.folder / name, name=name)
            return [self._known[name] for name in sorted(self._known)]

    def __getitem__(self, name: str) -> RunData:
        """The run of this name."""
        run = self._known.get(name)
        if run is None:
            self.found()
            run = self._known.get(name)
        if run is None:
            raise TelescopeError("there is no such run here")
        return run

    def first(self) -> RunData:
        """The run that a page of a single run shows."""
        return self.found()[0]

    def listing(self) -> dict[str, Any]:
        """All runs with their status, and the settings in which they differ."""
        found = self.found()
        settings = differing([run.settings.flat for run in found])
        return {
            "folder": shorten_text(self.folder.resolve().name, 200),
            "single": self.single,
            "now": round(time.time(), 3),
            "runs": [
                run.listed() | {"settings": own} for run, own in zip(found, settings, strict=True)
            ],
        }


def differing(runs: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each run the settings that are not the same in all runs.

    A run without a setting, or without a config, does not have it.
    """
    keys = dict.fromkeys(key for run in runs for key in run if key not in _OWN)
    told = [run for run in runs if run]
    differ = [key for key in keys if any(run.get(key) != told[0].get(key) for run in told)]
    return [{key: shown(run[key]) for key in differ if key in run} for run in runs]


def _run_folders(folder: Path) -> list[str]:
    """Names of the runs directly below the folder. Hidden ones are left out."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:  # deleted meanwhile
        return []
    return [
        entry.name
        for entry in entries
        if not entry.name.startswith(".") and _is_text(entry.name) and is_run(entry)
    ]


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # bytes that are no UTF-8: an address cannot hold them
        return False
    return True
