"""Finds a definition by name: built in, from an installed package, or from the user's own file."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from telescope.algorithms.definitions.base import Definition
from telescope.algorithms.definitions.trust import is_trusted

D = TypeVar("D", bound=Definition)


class UnknownDefinitionError(LookupError):
    """No definition has this name. The message says which there are."""


class Registry(Mapping[str, D], Generic[D]):
    """Definitions of one kind by name.

    A name is one of the built-in ones, one that an installed package offers as an entry point of
    `group`, or `module:object` / `path/to/file.py:object` of the user's own code.
    """

    def __init__(self, kind: type[D], what: str, group: str, built_in: tuple[D, ...]) -> None:
        self.kind = kind
        self.what = what
        self.group = group
        self.built_in = {definition.name: definition for definition in built_in}

    def __getitem__(self, name: str) -> D:
        if name in self.built_in:
            return self.built_in[name]
        offered = self._offered()
        if name in offered:
            return self._checked(offered[name].load(), name)
        if ":" in name:
            return self._checked(_load_object(name, self.what), name)
        known = ", ".join(self)
        raise UnknownDefinitionError(
            f"no {self.what} {name!r}: use one of {known}, or module:object, or file.py:object"
        )

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from (name for name in self._offered() if name not in self.built_in)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._offered()

    def recorded(self, name: str) -> D | None:
        """The definition that a file names, or None where finding it would run unknown code.

        A ledger may come from anybody. A `module:object` in it is imported only if this user has
        trained with exactly this file before: not after an edit, nor on another machine.
        """
        if ":" in name and name not in self and not is_trusted(name):
            return None
        try:
            return self[name]
        except LookupError:
            return None

    def _offered(self) -> dict[str, Any]:
        return {point.name: point for point in _entry_points(self.group)}

    def _checked(self, found: Any, name: str) -> D:
        if not isinstance(found, self.kind):
            decorator = f"telescope.algorithms.{self.what.replace(' ', '_')}"
            raise UnknownDefinitionError(
                f"{name!r} is not an {self.kind.__name__}: define it with @{decorator}(...)"
            )
        return found


@functools.cache
def _entry_points(group: str) -> tuple[Any, ...]:
    return tuple(entry_points(group=group))


@functools.cache
def _load_object(spec: str, what: str) -> Any:
    source, _, name = spec.rpartition(":")
    try:
        module = load_file(Path(source)) if source.endswith(".py") else load_module(source)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # even sys.exit()
        raise UnknownDefinitionError(
            f"{what} {spec!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        raise UnknownDefinitionError(f"{what} {spec!r}: {source} has no {name!r}")
    return getattr(module, name)


def load_file(path: Path) -> ModuleType:
    """Runs a Python file of the user's as a module."""
    path = path.expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    found = importlib.util.spec_from_file_location(f"telescope_plugin_{path.stem}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses and pickle look modules up there
    found.loader.exec_module(module)
    return module


def load_module(name: str) -> ModuleType:
    """Imports a module, one in the working folder too."""
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove("")
