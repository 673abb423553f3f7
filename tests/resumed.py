"""A run that fails and goes on, beside the same run that was never interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope import Config, Trainer
from tests.fakes import read_shards


def whole_and_resumed(
    make_config: Callable[..., Config],
    *settings: tuple[str, str],
    reward: Any,
    after: int,
) -> tuple[Config, Config]:
    """A whole run, and one that failed after step `after` and was resumed.

    In the end actor and critic have the same state in both, bit for bit.
    """
    whole, part = (make_config(*settings, ("name", name)) for name in ("whole", "part"))
    Trainer(whole, reward=reward).fit()
    broken = Trainer(part, reward=reward)
    broken._after_step = lambda *args: (
        Trainer._after_step(broken, *args),
        1 / 0 if broken.step == after else None,
    )
    with pytest.raises(ZeroDivisionError):
        broken.fit()
    resumed = Trainer(part, reward=reward, resume=True)
    assert resumed.step <= after
    resumed.fit()
    for role in ("actor", "critic"):
        states = [read_shards(last_checkpoint(config), role) for config in (whole, part)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    return whole, part


def last_checkpoint(config: Config) -> Path:
    return config.run_dir / "checkpoints" / f"step_{config.steps:06d}"
