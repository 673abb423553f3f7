"""`telescope.watch`: which way there is to watch an object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.peers.recorder import Recorder


def watch(trainer: Any, folder: Path | str = "runs/watched", **options: Any) -> Recorder:
    """Records every step of `trainer` into `folder`. `options` are those of `Recorder`."""
    from telescope.peers import openrlhf, trl  # `python -m telescope.peers.openrlhf` comes first

    ways = {
        "BasePPOTrainer": openrlhf.watch_trainer,
        "RemoteExperienceMaker": openrlhf.watch_maker,
        "PPOTrainer": trl.watch_ppo,
        "GRPOTrainer": trl.watch_grpo,
    }
    kinds = {kind.__name__ for kind in type(trainer).__mro__}
    for name, way in ways.items():
        if name in kinds:
            return way(trainer, folder, options)
    raise TelescopeError(
        f"no way to watch a {type(trainer).__name__}: give TRL's PPOTrainer or GRPOTrainer, or "
        "OpenRLHF's RemoteExperienceMaker, or call telescope.record in your own loop"
    )
