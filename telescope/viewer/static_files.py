"""The files of the page: a fixed list, made once. Nothing else is ever read for a visitor."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
"""A file of another kind is not served."""


@cache
def static_files() -> dict[str, bytes]:
    """Path below static/ -> content, e.g. core/state.js."""
    root = files("telescope.viewer") / "static"
    return dict(sorted(_below(root, "").items()))


def _below(folder: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            found |= _below(entry, f"{path}/")
        elif media_type(path) is not None:
            found[path] = entry.read_bytes()
    return found


def media_type(path: str) -> str | None:
    """What a browser is told that the file is; None: it is not served."""
    return next((kind for end, kind in MEDIA_TYPES.items() if path.endswith(end)), None)
