"""Which files of a ledger are damaged: every page is read and compared with its checksum."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from telescope.errors import TelescopeError
from telescope.ledger import reader
from telescope.ledger.lines import damage_of

_THREADS = 4
"""Files that are read at once."""
_NAMED = 5
"""Files that are named; of others only the number is told."""


class LedgerDamage:
    """The damaged files of a run's ledger. A file is read again only when it has changed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._known: dict[tuple[int, reader.Kind, int, int], bool] = {}
        """Step, kind, time and size of a file -> whether it is damaged."""

    def files(self, until: int | None = None) -> list[Path]:
        """Those that cannot be read whole, of steps up to `until`."""
        files = [file for file in reader.files(self.run) if until is None or file[0] <= until]
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(self._is_damaged, files))
        pairs = zip(files, found, strict=True)
        return [reader.path_of(self.run, *file) for file, is_bad in pairs if is_bad]

    def lines(self, until: int | None = None) -> list[str]:
        """One line that names them; none if all are whole."""
        folder = self.run / "ledger"
        if os.path.lexists(folder) and not folder.is_dir():
            return [f"{folder} is damaged: it is not a folder"]
        names = [path.name for path in self.files(until)]
        if not names:
            return []
        named = ", ".join(names[:_NAMED])
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return [f"damaged files of {folder} are left out: {named}{more}"]

    def _is_damaged(self, file: tuple[int, reader.Kind]) -> bool:
        try:
            status = reader.path_of(self.run, *file).stat()
        except OSError:  # it was moved away meanwhile, or cannot be looked at
            return _is_damaged(self.run, *file)
        as_written = (*file, status.st_mtime_ns, status.st_size)
        if as_written not in self._known:
            self._known[as_written] = _is_damaged(self.run, *file)
        return self._known[as_written]


def _is_damaged(run: Path, step: int, kind: reader.Kind) -> bool:
    try:
        reader.read(run, step, kind=kind)
    except reader.DamagedError:
        return True
    except TelescopeError:  # it was moved away meanwhile, or is of a newer version
        return False
    return False


def ledger_damage(run: Path, until: int | None = None) -> list[str]:
    """One line that names the damaged files of a run's ledger; none if all are whole."""
    return LedgerDamage(run).lines(until)


def run_damage(run: Path) -> list[str]:
    """What of a run's config.toml, metrics.jsonl and ledger cannot be used, in one line each."""
    return [*damage_of(run), *ledger_damage(run)]
