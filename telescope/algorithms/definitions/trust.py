"""Code that this user has trained with: what a run that somebody made may import.

A run folder may come from anybody. What its files name is imported only if this user's training has
imported exactly the same before: not after an edit, nor on another machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

MODEL_CODE = "model.trust_remote_code "
"""In front of a model's path: the Python files that come with its weights."""
TABLE = "table "
"""In front of a setting that decides what is run, or who is sent a key, and its value; as JSON."""


def trust(*specs: str) -> None:
    """Remembers that this user has run this code.

    A spec is `module:object`, `file.py:object`, the address of a reward server, MODEL_CODE and the
    path of a model, or TABLE and a table.
    """
    path = _trust_file()
    with contextlib.suppress(OSError):  # a home that cannot be written to costs only the memory
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _trusted()
            found = {_key(spec): checksum for spec in specs if (checksum := _checksum(spec))}
            if found.items() <= known.items():
                return
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps(known | found, indent=1), "utf-8")
            temporary.replace(path)


def is_trusted(spec: str) -> bool:
    """Whether this user has trained with this code, as it is now."""
    known = _trusted().get(_key(spec))
    return known is not None and known == _checksum(spec)


def absolute(spec: str) -> str:
    """The same code from any working folder: a file's path is made absolute."""
    source, _, name = spec.rpartition(":")
    if not source.endswith(".py"):
        return spec
    return f"{Path(source).expanduser().absolute()}:{name}"


def _key(spec: str) -> str:
    if "://" in spec or spec.startswith(TABLE):  # it may hold a password
        return hashlib.sha256(spec.encode()).hexdigest()
    return spec if spec.startswith(MODEL_CODE) else absolute(spec)


def _trust_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "telescope" / "algorithms.json"


def _trusted() -> dict[str, str]:
    try:
        known = json.loads(_trust_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _checksum(spec: str) -> str | None:
    """SHA-256 of the files that the code is in; None if there are none. Imports nothing."""
    if spec.startswith(TABLE):
        return "a table"
    if "://" in spec:
        return "a server"
    if spec.startswith(MODEL_CODE):
        folder = Path(spec.removeprefix(MODEL_CODE)).expanduser()
        if not folder.is_dir():
            return "a hub"
        paths = sorted(folder.glob("*.py"))
        if paths:  # which of the classes are used, or those of another folder, stands in there
            paths += sorted(folder.glob("*config.json"))
    elif (source := spec.rpartition(":")[0]).endswith(".py"):
        paths = [Path(source).expanduser()]
    else:
        paths = list(_files_of_module(source))
    checksum = hashlib.sha256()
    try:
        for path in paths:
            checksum.update(path.read_bytes())
    except OSError:
        return None
    return checksum.hexdigest() if paths else None


def _files_of_module(name: str) -> Iterator[Path]:
    """The files that importing a module runs: its packages' and its own.

    `find_spec` of importlib would import the packages.
    """
    folders = ["", *sys.path]  # the working folder comes first, see `load_module`
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:depth]), folders)
        if found is None:
            return
        if found.origin:
            yield Path(found.origin)
        folders = list(found.submodule_search_locations or [])
