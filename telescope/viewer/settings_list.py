"""The settings of a run, each beside its default. Reads config.toml and runs nothing of it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telescope.config import CHOICES, RENAMED, checked_toml, fields, flat
from telescope.errors import TelescopeError

NOT_COMPARED = ("name", "dir", "seed", "device")
"""Runs that differ only in these are of one group."""


@dataclass(frozen=True)
class RunSettings:
    """What config.toml says; empty if there is none or it cannot be read."""

    flat: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key -> value."""

    @classmethod
    def read(cls, run: Path) -> RunSettings:
        try:
            data = checked_toml(run / "config.toml")
        except TelescopeError:
            return cls()
        return cls({RENAMED.get(key, key): _plain(value) for key, value in flat(data)})

    @property
    def total_steps(self) -> int | None:
        return self._whole("steps")

    @property
    def seed(self) -> int | None:
        return self._whole("seed")

    @property
    def correct_score(self) -> float:
        """The score from which a response counts as right."""
        score = self.flat.get("eval.correct_score")
        return float(score) if isinstance(score, int | float) else 1.0

    @property
    def part_weights(self) -> dict[str, float]:
        """The weight of each part of the score, where the config names it."""
        weights = self.flat.get("reward.weights")
        given = weights.items() if isinstance(weights, dict) else ()
        return {name: float(x) for name, x in given if isinstance(x, int | float)}

    @property
    def group_size(self) -> int | None:
        """Responses that are sampled for each prompt."""
        return self._whole("rollout.n")

    def _whole(self, key: str) -> int | None:
        number = self.flat.get(key)
        return number if isinstance(number, int) else None

    @property
    def group(self) -> str | None:
        """The same for runs that differ only in seed and name; None without a config."""
        compared = {k: v for k, v in self.flat.items() if k not in NOT_COMPARED}
        if not compared:
            return None
        text = json.dumps(compared, sort_keys=True, default=str)
        return hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=4).hexdigest()

    def to_json(self) -> list[dict[str, Any]]:
        """Every setting with its default. `changed`: the two differ."""
        defaults = _defaults() | self._own_defaults()
        rows = []
        for key, value in self.flat.items():
            default = defaults.get(key)
            changed = key not in defaults or value != default
            rows.append(
                {"key": key, "value": shown(value), "default": shown(default), "changed": changed}
            )
        return rows

    def _own_defaults(self) -> dict[str, Any]:
        """Defaults of the chosen algorithms: one setting may have another default in each."""
        found: dict[str, Any] = {}
        for choice in CHOICES:
            name = self.flat.get(choice.key, choice.default)
            definition = choice.registry.built_in.get(name) if isinstance(name, str) else None
            if definition is not None:
                for setting, info in definition.settings.model_fields.items():
                    found[f"{choice.section}.{setting}"] = _plain(info.default)
        return found


@functools.cache
def _defaults() -> dict[str, Any]:
    return {key: _plain(default) for key, _, default, _ in fields()}


def shown(value: Any) -> Any:
    """A value as the page shows it: a list or table as one line of JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, str) else value[:400]
    return json.dumps(value, ensure_ascii=False, default=str)[:400]


def _plain(value: Any) -> Any:
    """TOML has no null: the word "none" stands for it."""
    return None if value == "none" else value
