"""Which files of a ledger are damaged: every page is read and compared with its checksum."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

from telescope.errors import TelescopeError
from telescope.ledger import reader

_THREADS = 4
"""Files that are read at once."""
_NAMED = 5
"""Files that are named; of others only the number is told."""


def damaged_files(run: Path, until: int | None = None) -> list[Path]:
    """The ledger's files that cannot be read whole, those of steps up to `until`."""
    files = [
        (step, kind)
        for kind in get_args(reader.Kind)
        for step in reader.steps(run, kind)
        if until is None or step <= until
    ]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda file: _is_damaged(run, *file), files))
    return [reader.path_of(run, *file) for file, bad in zip(files, found, strict=True) if bad]


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
    names = [path.name for path in damaged_files(run, until)]
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"damaged files of {run / 'ledger'} are left out: {', '.join(names[:_NAMED])}{more}"]
