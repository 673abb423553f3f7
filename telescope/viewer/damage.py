"""Which files of a run are damaged, as the page says it."""

from __future__ import annotations

from pathlib import Path

from telescope.chinese import chinese
from telescope.ledger import reader as ledger
from telescope.ledger.damage import LedgerDamage
from telescope.ledger.lines import damage_of
from telescope.viewer.background import Background, written

Lines = list[dict[str, str]]
"""One line per kind of file, in both languages: {zh, en}."""


class Damage:
    """The damaged files of one run: config.toml, metrics.jsonl, the ledger's."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._ledger = LedgerDamage(run)
        self._lines = Background[Lines](self._look, [])

    def known(self, *, wait: bool = False) -> Lines:
        """What is known so far; `wait`: all of it."""
        if not self.run.is_dir():
            return []
        return self._lines.known(self._stamp(), wait=wait)

    def _look(self) -> Lines:
        found = [*damage_of(self.run), *self._ledger.lines()]
        # Who reads the page need not know where the run is.
        told = [line.replace(f"{self.run}/", "") for line in found]
        return [{"zh": chinese(line), "en": line} for line in told]

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        """When each file was written, and its size."""
        files = [ledger.path_of(self.run, *file) for file in ledger.files(self.run)]
        own = [self.run / "config.toml", self.run / "metrics.jsonl"]
        return tuple(written(path) for path in [*own, *files])
