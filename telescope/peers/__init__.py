"""Steps of other trainers as a run folder that `explain`, `ask`, the page and the report can open.

    import telescope
    telescope.record(step, responses=ids, mask=mask, values=values, advantages=advantages)

`rows` brings a trainer's arrays into one shape, `recorder` writes them, `readers` open the files
that other trainers write. Nothing here raises into the host trainer or runs what it reads. May
import ledger, explain, batch, config, algorithms and errors.
"""

from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.peers.recorder import Recorder, record

__all__ = ["Recorder", "record", "watch"]


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
        if name in kinds:  # OpenRLHF's PPOTrainer has the name of TRL's, and is a BasePPOTrainer
            return way(trainer, folder, options)
    raise TelescopeError(
        f"no way to watch a {type(trainer).__name__}: give TRL's PPOTrainer or GRPOTrainer, or "
        "OpenRLHF's RemoteExperienceMaker, or call telescope.record in your own loop"
    )
