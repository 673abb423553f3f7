"""Folders that are made once per machine and found again. Imports no torch."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from telescope.errors import TelescopeError


def made_once(name: str, make: Callable[[Path], None], cache: Path | None = None) -> Path:
    """The model folder `name` in the cache; `make` fills a new one, which appears whole or not at all."""
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "telescope"
    folder = cache / name
    if (folder / "config.json").is_file():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
    except OSError as error:
        raise TelescopeError(
            f"cannot write {cache}: {error.strerror}; set XDG_CACHE_HOME to a folder you may write to"
        ) from error
    try:
        make(temporary)
        temporary.chmod(0o755)
        temporary.rename(folder)
    except OSError as error:
        if not (folder / "config.json").is_file():  # else somebody else was quicker
            raise TelescopeError(
                f"cannot make the model in {folder}: {error.strerror or error}"
            ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
