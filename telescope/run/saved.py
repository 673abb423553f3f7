"""A trained run on disk: its config, and the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from telescope.config import Config, load_saved_config
from telescope.errors import TelescopeError
from telescope.models.load import fingerprint
from telescope.models.shards import load_weights
from telescope.roles.factory import warm_start_folder
from telescope.run import checkpoint
from telescope.run.manifest import (
    Manifest,
    check_origin,
    list_checkpoints,
    read_manifest,
    step_of,
)


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
    step: int | Literal["best"] | None = None,
    trusted: bool = False,
    functions: bool = True,
) -> SavedRun:
    """Opens the run in a folder, with some of its settings changed.

    `step` chooses a checkpoint: that of a step, or the best by `eval.best`; default: the newest.
    Code that its config names must have been trained with by this user, unless it is `trusted`.
    Without `functions` that holds only for what loading the models imports.
    """
    recipe = recipe_of(run)
    found = list_checkpoints(run / "checkpoints")
    if not found:
        raise TelescopeError(f"{run} has no checkpoint yet: train it first")
    chosen = _choose(run, found, step)
    config = load_saved_config(recipe, overrides, trusted=trusted, functions=functions)
    return SavedRun(at_home(config, run), chosen, checkpoint.check(chosen))


def at_home(config: Config, run: Path) -> Config:
    """The config of a run that may have been moved to `run`. Checks its warm-started model."""
    here = run.resolve()
    config = config.model_copy(update={"dir": str(here.parent), "name": here.name})
    if config.warm_start.files:
        checkpoint.check(warm_start_folder(config))
    return config


def recipe_of(run: Path) -> Path:
    recipe = run / "config.toml"
    if not recipe.is_file():
        raise TelescopeError(
            f"{run} is not a run folder: it has no config.toml; give one like runs/arithmetic"
        )
    return recipe


def _choose(run: Path, found: Sequence[Path], step: int | Literal["best"] | None) -> Path:
    """The checkpoint of a step, the best one, or the newest."""
    if step is None:
        return found[-1]
    if step == "best":
        step = read_manifest(found[-1]).best
        if step is None:
            raise TelescopeError(
                f"{run} has no best checkpoint: it was trained without eval.best, "
                "the metric that decides"
            )
    for path in found:
        if step_of(path) == step:
            return path
    there = ", ".join(str(step_of(path)) for path in found)
    raise TelescopeError(f"{run} has no checkpoint of step {step}: there are {there}")
