"""Finds out what a path holds, and reads it as far as it has grown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from telescope.config.paths import check_ordinary
from telescope.doctor.curves import Curves
from telescope.doctor.settings import read_settings
from telescope.doctor.sources import logs, tensorboard, trl, wandb
from telescope.doctor.sources.names import canonical
from telescope.errors import TelescopeError
from telescope.ledger import reader as ledger
from telescope.ledger.lines import read_line


class Source:
    """Metrics as curves. A source that does not grow is read once."""

    def __init__(self, settings: dict[str, Any], rows: Iterable[dict[str, Any]] = ()) -> None:
        self.curves = Curves(settings)
        for row in rows:
            self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        step = row.get("step")
        if isinstance(step, int | float):
            self.curves.add(step, canonical({k: v for k, v in row.items() if k != "step"}))

    def refresh(self) -> Curves:
        return self.curves


class RunFolder(Source):
    """metrics.jsonl of a run folder. `refresh` reads the lines that were added."""

    def __init__(self, run: Path) -> None:
        super().__init__(read_settings(run))
        self.run = run
        self._file = 0
        self._read = 0

    def refresh(self) -> Curves:
        path = self.run / "metrics.jsonl"
        try:
            check_ordinary(path)
            with path.open("rb") as file:
                status = path.stat()
                if status.st_ino != self._file or status.st_size < self._read:
                    self._begin(status.st_ino)  # a resumed run writes its file anew
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return self.curves
        except OSError as error:
            raise TelescopeError(f"{path} cannot be read: {error.strerror}") from None
        end = text.rfind(b"\n") + 1  # a line that is still being written is read next time
        for line in text[:end].splitlines():
            row = read_line(line)
            if row is not None:
                self._add(row)
        self._read += end
        return self.curves

    def _begin(self, file: int) -> None:
        self.curves = Curves(read_settings(self.run))
        self._file = file
        self._read = 0


def open_source(path: Path) -> Source:
    """The metrics at a path; says what could be read if there are none."""
    if path.is_dir():
        if (path / "metrics.jsonl").is_file() or ledger.steps(path):
            return RunFolder(path)
        for reader in (trl, wandb, tensorboard, logs):
            found = reader.find(path)
            if found is not None:
                return Source({}, reader.read(found))
    elif path.is_file():
        for reader in (trl, wandb, tensorboard, logs):
            if reader.is_mine(path):
                return Source({}, reader.read(path))
    raise TelescopeError(
        f"{path} has no metrics: give a run folder (metrics.jsonl or a ledger), TRL's "
        "trainer_state.json, TensorBoard events, an offline W&B file, or a console or jsonl log "
        "of verl"
    )
