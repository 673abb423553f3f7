"""What a script passes to Trainer: names become settings, objects stay beside the config."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telescope.build import GivenReward
from telescope.config import Config, fields, load_config, merge, validate
from telescope.config.suggest import advice
from telescope.data.build import GivenData
from telescope.data.sources import GIVEN, Source, names_of
from telescope.errors import TelescopeError
from telescope.models.load import quiet, repair_generation_config


@dataclass(frozen=True)
class Given:
    """The objects; None where the config names what to load."""

    model: Any
    tokenizer: Any
    data: GivenData
    reward: GivenReward


ARGUMENTS = (
    "config",
    "model",
    "tokenizer",
    "train_dataset",
    "eval_dataset",
    "reward",
    "callbacks",
    "resume",
)
"""What `Trainer` takes."""
_ELSEWHERE = {
    "args": "config",
    "processing_class": "tokenizer",
    "reward_funcs": "reward",
    "reward_fn": "reward",
    "reward_function": "reward",
    "reward_functions": "reward",
    "compute_score": "reward",
    "train_data": "train_dataset",
    "data": "train_dataset",
    "dataset": "train_dataset",
    "eval_data": "eval_dataset",
    "val_dataset": "eval_dataset",
    "resume_from_checkpoint": "resume",
}
"""Other trainers' arguments, and ours."""


def checked_arguments(config: object, unknown: Mapping[str, object]) -> Config | str | Path:
    """The config; refuses arguments that `Trainer` does not have, and a config that is none."""
    for name in unknown:
        close = difflib.get_close_matches(name, ARGUMENTS, 1, 0.75)
        ours = _ELSEWHERE.get(name, close[0] if close else None)
        if ours is not None:
            raise TelescopeError(f"Trainer has no argument `{name}`: did you mean `{ours}`?")
        meant = advice(name, {key: text for key, _, _, text in fields()})
        raise TelescopeError(
            f"Trainer has no argument `{name}`; settings belong in the config: {meant}"
        )
    if not isinstance(config, Config | str | Path):
        given = "Trainer without a config" if config is None else f"config={config!r:.80}"
        raise TelescopeError(
            f"{given}: give a Config(...) with the settings, or the path or name of a recipe, first"
        )
    return config


def take_arguments(
    config: Config | str | Path,
    *,
    model: Any,
    tokenizer: Any,
    train_dataset: Source | None,
    eval_dataset: Source | None,
    reward: GivenReward | str,
) -> tuple[Config, Given]:
    """The config with everything that is named, and the objects.

    A model or a tokenizer that is an object gets a folder in the run's: `write_objects` fills it.
    """
    if isinstance(config, str | Path):
        config = load_config(config)
    models: dict[str, Any] = {}
    data: dict[str, Any] = {}
    rewards: dict[str, Any] = {}
    if isinstance(model, str | Path):
        models["path"] = str(model)
        model = None
    elif model is not None:
        models["path"] = str(config.run_dir / "model")
        if tokenizer is None:
            models["tokenizer_path"] = _origin_of(model)
    if isinstance(tokenizer, str | Path):
        models["tokenizer_path"] = str(tokenizer)
        tokenizer = None
    elif tokenizer is not None:
        models["tokenizer_path"] = str(config.run_dir / "tokenizer")
    if train_dataset is not None:
        data["files"] = names_of(train_dataset) or [GIVEN]
        data["task"] = None
    if eval_dataset is not None:
        data["eval_files"] = names_of(eval_dataset) or [GIVEN]
    if isinstance(reward, str):
        rewards["functions"] = [reward]
        reward = None
    changes = {"model": models, "data": data, "reward": rewards}
    if any(changes.values()):
        config = validate(merge(config.model_dump(exclude_unset=True), changes))
    train = None if names_of(train_dataset) else train_dataset
    held_out = None if names_of(eval_dataset) else eval_dataset
    return config, Given(model, tokenizer, GivenData(train, held_out), reward)


def _origin_of(model: Any) -> str:
    """Where a model object was loaded from: its tokenizer is there too."""
    for method in ("save_pretrained", "generate"):
        if not hasattr(model, method):
            raise TelescopeError(
                f"model={type(model).__name__} is not a Hugging Face causal language model: "
                "give one, or the path of one"
            )
    if hasattr(model, "peft_config"):
        raise TelescopeError(
            "model= has LoRA adapters already: give the base model, and set model.lora_rank"
        )
    origin = str(getattr(model, "name_or_path", ""))
    if not origin:
        raise TelescopeError("the model was not loaded from a folder: pass tokenizer= too")
    return origin


def write_objects(config: Config, given: Given) -> None:
    """Writes a model and a tokenizer that are objects into the run's folder.

    There `eval`, `export`, a resumed run and other processes find them.
    """
    if given.model is not None:
        repair_generation_config(given.model)
    for thing, folder in _objects(config, given):
        _write(thing, folder)


def remove_objects(config: Config, given: Given) -> None:
    """Takes back what `write_objects` wrote, where the start of a new run is refused."""
    for _, folder in _objects(config, given):
        shutil.rmtree(folder, ignore_errors=True)


def _objects(config: Config, given: Given) -> list[tuple[Any, Path]]:
    """Model and tokenizer, where they are objects, each with its folder in the run's."""
    model = config.model
    places = ((given.model, model.path), (given.tokenizer, model.tokenizer_path))
    return [(thing, Path(folder)) for thing, folder in places if thing is not None and folder]


def _write(thing: Any, folder: Path) -> None:
    temporary = folder.with_name(f".writing-{folder.name}")
    try:
        for old in (temporary, folder):
            if old.exists():
                shutil.rmtree(old)
        with quiet():
            thing.save_pretrained(temporary)
        temporary.rename(folder)
    except OSError as error:
        raise TelescopeError(f"cannot write {folder}: {error.strerror or error}") from error
