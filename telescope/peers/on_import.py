"""Calls a function with a module once it is imported, without importing it here."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType

from telescope.peers.hooks import listen

Patch = Callable[[ModuleType], None]


def on_import(patches: Mapping[str, Patch]) -> None:
    """Applies each patch when its module is imported; at once where it is there already."""
    waiting = dict(patches)
    for name in list(waiting):
        if name in sys.modules:
            waiting.pop(name)(sys.modules[name])
    if waiting:
        sys.meta_path.insert(0, _Finder(waiting))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it lets the others find, and listens to the loader."""

    def __init__(self, waiting: dict[str, Patch]) -> None:
        self.waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = self.waiting.pop(fullname, None)
        if patch is None:
            return None

        def apply(_: None, module: ModuleType) -> None:
            if module.__name__ == fullname:  # all modules of a zip file have the same loader
                patch(module)

        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            listen(spec.loader, "exec_module", nullcontext, after=apply)
        return spec
