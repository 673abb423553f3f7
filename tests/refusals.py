"""A short run that a test gets wrong on purpose, and the one line that it is refused with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from telescope.config import Config
from telescope.errors import TelescopeError

PROMPTS = ["请问1+1=2？", "请问1+2=4？", "请问2+2=4？", "你知道1+1吗？"]
Job = Callable[..., Config]
"""job(("steps", "3"), …): see the fixture `job`."""


def length(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """A reward that any run can use: the number of characters."""
    return [float(len(text)) for text in completions]


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def edit_json(path: Path, **changes: Any) -> None:
    """Changes these keys of a JSON file; a key set to None is removed."""
    data = json.loads(path.read_text("utf-8")) | changes
    kept = {key: value for key, value in data.items() if value is not None}
    path.write_text(json.dumps(kept), "utf-8")


def edit_config(path: Path, old: str, new: str) -> None:
    """Changes a run's config.toml by hand, and removes its checksum, the first line."""
    text = path.read_text("utf-8").replace(old, new)
    path.write_text(text.partition("\n")[2], "utf-8")


def refusal(config: Config, reward: Any = length, *, resume: bool | str = False) -> str:
    """The one line that training with this config gets."""
    from telescope.trainer import Trainer

    with pytest.raises(TelescopeError) as error:
        Trainer(config, reward=reward, resume=resume).fit()
    assert "\n" not in str(error.value)
    return str(error.value)


def names_of_checkpoints(config: Config) -> list[str]:
    """Everything in the checkpoints folder, hidden files included."""
    return sorted(path.name for path in (config.run_dir / "checkpoints").iterdir())
