"""`telescope.watch`: which way there is to watch an object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.peers import openrlhf, trl
from telescope.peers.recorder import Recorder

WAYS: dict[str, Callable[..., Recorder]] = {
    "BasePPOTrainer": openrlhf.watch_trainer,
    "RemoteExperienceMaker": openrlhf.watch_maker,
    "PPOTrainer": trl.watch_ppo,
    "GRPOTrainer": trl.watch_grpo,
}
"""Class of the trainer, or of one it inherits from -> how it is watched."""


def watch(trainer: Any, folder: Path | str = "runs/watched", **options: Any) -> Recorder:
    """Records every step of `trainer` into `folder`. `options` are those of `Recorder`."""
    kinds = {kind.__name__ for kind in type(trainer).__mro__}
    for name, way in WAYS.items():
        if name in kinds:
            return way(trainer, folder, options)
    raise TelescopeError(
        f"no way to watch a {type(trainer).__name__}: give TRL's PPOTrainer or GRPOTrainer, or "
        "OpenRLHF's RemoteExperienceMaker, or call telescope.record in your own loop"
    )
