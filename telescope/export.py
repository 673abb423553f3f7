"""What can be done with a finished run: evaluate it, and turn it into ordinary Hugging Face folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from telescope import checkpoint
from telescope.backends.local import build_actor, build_data, build_reward
from telescope.config import Config, load_config
from telescope.errors import TelescopeError
from telescope.evaluate import evaluate
from telescope.roles.reward import RewardFunction


def open_run(run: Path) -> tuple[Config, Path, dict[str, Any]]:
    """A run's config, its newest checkpoint and that one's manifest."""
    recipe = run / "config.toml"
    if not recipe.is_file():
        raise TelescopeError(f"{run} is not a run folder: it has no config.toml; give one like runs/arithmetic")
    found = checkpoint.list_checkpoints(run / "checkpoints")
    if not found:
        raise TelescopeError(f"{run} has no checkpoint yet: train it first")
    return load_config(recipe), found[-1], checkpoint.check(found[-1])


def evaluate_run(run: Path, reward: RewardFunction | Mapping[str, RewardFunction] | None = None) -> dict[str, float]:
    """eval/* of the newest checkpoint. A run whose reward was given to Trainer in Python needs it here too."""
    config, path, manifest = open_run(run)
    trained = config.model.model_copy(update={"path": str(path / "actor")})
    actor = build_actor(config.model_copy(update={"model": trained}))
    held_out = build_data(config, actor.tokenizer)[1]
    if held_out is None:
        raise TelescopeError(f"{run} has no held-out prompts: set data.eval_files in {run / 'config.toml'}")
    if manifest["reward_in_python"] and reward is None:
        raise TelescopeError(
            f"{run} was trained with the reward {', '.join(manifest['reward'])}, given in Python, not in its config.toml: "
            "call telescope.export.evaluate_run(run, reward=...) with it"
        )
    return evaluate(actor, build_reward(config, actor.tokenizer, actor.model.device, reward), held_out, config)


def export_run(run: Path, folder: Path) -> int:
    """The actor into `folder`, the critic, if there is one, into `folder`/critic; returns the step."""
    _, path, _ = open_run(run)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TelescopeError(f"{folder} exists already: give a new folder")
    temporary = folder.absolute().parent / f".exporting-{os.getpid()}"
    try:
        shutil.copytree(path / "actor", temporary)
        if (path / "critic" / "config.json").is_file():
            shutil.copytree(path / "critic", temporary / "critic")
        folder.mkdir(exist_ok=True)
        for child in temporary.iterdir():
            child.rename(folder / child.name)
        temporary.rmdir()
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise TelescopeError(f"cannot write {folder}: {error.strerror or error}") from error
    return int(path.name.removeprefix("step_"))
