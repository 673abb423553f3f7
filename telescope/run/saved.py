"""A trained run on disk: its config, and the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telescope.config import Config, load_saved_config
from telescope.errors import TelescopeError
from telescope.models.load import fingerprint
from telescope.models.shards import load_weights
from telescope.run import checkpoint
from telescope.run.manifest import Manifest, check_origin, step_of


@dataclass(frozen=True)
class SavedRun:
    """A run's config and one of its checkpoints. The checkpoint's files have been checked."""

    config: Config
    path: Path
    """The checkpoint's folder."""
    manifest: Manifest

    @property
    def step(self) -> int:
        return step_of(self.path)

    def load_weights(self, role: str, model: Any) -> None:
        """Gives `model`, as the run started from it, the trained weights of `role`."""
        check_origin(self.path, self.manifest, {role: fingerprint(model)})
        with checkpoint.explained(self.path):
            load_weights(checkpoint.shards_of(self.path, role), model)


def open_run(
    run: Path,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    trusted: bool = False,
    functions: bool = True,
) -> SavedRun:
    """Opens the run in a folder, with some of its settings changed.

    Code that its config names must have been trained with by this user, unless it is `trusted`.
    Without `functions` that holds only for what loading the models imports.
    """
    recipe = run / "config.toml"
    if not recipe.is_file():
        raise TelescopeError(
            f"{run} is not a run folder: it has no config.toml; give one like runs/arithmetic"
        )
    found = checkpoint.list_checkpoints(run / "checkpoints")
    if not found:
        raise TelescopeError(f"{run} has no checkpoint yet: train it first")
    newest = found[-1]
    config = load_saved_config(recipe, overrides, trusted=trusted, functions=functions)
    return SavedRun(config, newest, checkpoint.check(newest))
