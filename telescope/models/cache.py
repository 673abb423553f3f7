"""Model folders that are made once per machine. Imports no torch."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from telescope.errors import TelescopeError


def cached_model(name: str, make: Callable[[Path], None], cache: Path | None = None) -> Path:
    """The folder `name` in the cache. If it is missing, `make` fills a new one.

    The folder appears complete or not at all, also if several processes make it at the same time.
    """
    if cache is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(home) / "telescope"
    folder = cache / name
    if (folder / "config.json").is_file():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
    except OSError as error:
        raise TelescopeError(
            f"cannot write {cache}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder you may write to"
        ) from error
    try:
        make(temporary)
        temporary.chmod(0o755)
        temporary.rename(folder)
    except OSError as error:
        another_was_faster = (folder / "config.json").is_file()
        if not another_was_faster:
            raise TelescopeError(
                f"cannot make the model in {folder}: {error.strerror or error}"
            ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
