"""Recipes that come with the package, found by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from telescope.errors import TelescopeError

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parent / "recipes")
"""Where recipes are: inside an installed package, or beside the package in a clone."""


def find_recipe(given: str | Path) -> Path:
    """The path of a recipe: a file as given, or else a shipped recipe of that name.

    `telescope train calculator` means the shipped `calculator.toml`, unless a file called
    `calculator` exists. A name that is neither comes back unchanged, for the caller to report.
    """
    path = Path(given)
    if path.exists() or path.suffix == ".toml" or len(path.parts) != 1:
        return path
    shipped = shipped_recipes()
    name = str(given)
    close = difflib.get_close_matches(name, shipped, 1)
    if close and name not in shipped and not path.with_suffix(".toml").is_file():
        raise TelescopeError(f"no recipe {given}: did you mean `{close[0]}`, which is shipped?")
    return shipped.get(name, path)


def shipped_recipes() -> dict[str, Path]:
    """Every shipped recipe by name: `{"calculator": Path(".../calculator.toml"), ...}`."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        return {}
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}
