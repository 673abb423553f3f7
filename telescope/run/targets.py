"""What `telescope eval` measures: a run, one of its checkpoints, a model folder or a hub model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from telescope.build import build_actor
from telescope.config import Config, WarmStartConfig, load_config
from telescope.errors import TelescopeError
from telescope.run.evaluate import Evaluation, check_reward, evaluate_actor, evaluate_saved
from telescope.run.saved import open_run

Step = int | Literal["best"] | None
Settings = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Measured:
    target: str
    step: int | None
    """Step of the checkpoint; None for a model."""
    evaluation: Evaluation
    on_builtin_data: bool = False
    """A model that was measured on the built-in prompts, as no recipe or data was named."""


def is_run(target: str) -> bool:
    """Whether it names a run or a checkpoint of one, not a model."""
    folder = Path(target)
    return folder.parent.name == "checkpoints" or (folder / "config.toml").is_file()


def evaluate_target(
    target: str,
    settings: Settings = (),
    *,
    step: Step = None,
    recipe: str | None = None,
    trusted: bool = False,
) -> Measured:
    """Evaluates a run folder, a checkpoint folder of a run, a model folder or a hub model.

    A model is measured with the data and reward of `recipe`, which is a recipe or a run.
    """
    folder = Path(target)
    if folder.parent.name == "checkpoints" and folder.name.startswith("step_"):
        number = folder.name.removeprefix("step_")
        if not number.isdecimal():
            raise TelescopeError(f"{target} is not a checkpoint: they are called step_000040")
        step = int(number)
        folder = folder.parent.parent
    if (folder / "config.toml").is_file():
        saved = open_run(folder, settings, step=step, trusted=trusted)
        return Measured(target, saved.step, evaluate_saved(saved))
    if not folder.exists() and next(folder.parent.glob("*/config.toml"), None) is not None:
        raise TelescopeError(f"no run {target}: {folder.parent} has others, but not this one")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise TelescopeError(
            f"{target} is neither a run nor a model: it has no config.toml and no config.json"
        )
    config = _config_of_model(target, settings, recipe, trusted=trusted)
    evaluation = evaluate_actor(build_actor(config), config)
    return Measured(target, None, evaluation, on_builtin_data=config.lacks_data)


def _config_of_model(
    target: str, settings: Settings, recipe: str | None, *, trusted: bool
) -> Config:
    """The config of `recipe` with the target as its model: whole, and not warm-started."""
    whole = [("model.lora_rank", "0"), ("model.lora_alpha", "none"), ("model.lora_targets", "[]")]
    whole += [("model.path", target), ("model.quantize", "none")]
    given = [("model.tokenizer_path", "none"), *settings, *whole]
    if recipe is not None and (Path(recipe) / "config.toml").is_file():
        saved = open_run(Path(recipe), given, trusted=trusted)
        check_reward(saved)
        config = saved.config
    else:
        config = load_config(recipe, given)
    return config.model_copy(update={"warm_start": WarmStartConfig()})
