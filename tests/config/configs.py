"""A config from command-line values, and the one line that a wrong one is refused with."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.config import Config, load_config, to_toml
from telescope.errors import TelescopeError


def typed(text: str) -> list[tuple[str, str]]:
    """Settings written as "key=value key=value"."""
    return [(key, value) for key, _, value in (word.partition("=") for word in text.split())]


def given(*overrides: tuple[str, str]) -> Config:
    """Defaults with these command-line values."""
    return load_config(None, overrides)


def refusal(*overrides: tuple[str, str], recipe: Path | None = None) -> str:
    """The one line that a wrong config gets."""
    with pytest.raises(TelescopeError) as error:
        load_config(recipe, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def round_trip(config: Config, folder: Path) -> Config:
    path = folder / "written.toml"
    path.write_bytes(to_toml(config).encode("utf-8"))
    return load_config(path)
