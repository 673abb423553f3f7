"""The settings of a run by dotted key, as far as they are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from telescope.config import RENAMED, checked_toml, fields, flat
from telescope.errors import TelescopeError


def read_settings(run: Path) -> dict[str, Any]:
    """Those of config.toml, or of watched.toml for a run of another trainer."""
    own = _toml(run / "config.toml")
    if own:
        return {RENAMED.get(key, key): value for key, value in flat_settings(own).items()}
    return _by_plain_names(_toml(run / "watched.toml").get("settings", {}))


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key. TOML says "none" for None."""
    return {key: None if value == "none" else value for key, value in flat(config)}


def _by_plain_names(names: Mapping[str, Any]) -> dict[str, Any]:
    """`gamma` is `credit.gamma`: the first section that has the name."""
    keys = [key for key, *_ in fields()]
    found: dict[str, Any] = {}
    for name, value in names.items():
        for section in ("credit", "actor", "critic", "rollout"):
            if f"{section}.{name}" in keys:
                found[f"{section}.{name}"] = value
                break
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return checked_toml(path)
    except TelescopeError:
        return {}
