"""What can be done with a finished run: evaluate it, and turn it into ordinary Hugging Face folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from telescope.build import build_actor, build_data, build_reward, resolve_model
from telescope.config import Config, load_config
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError
from telescope.models.load import (
    fingerprint,
    load_critic,
    load_policy,
    load_tokenizer,
    quiet,
)
from telescope.models.lora import merge_adapters, save_adapters, trained_weights
from telescope.models.shards import load_weights
from telescope.models.value import ValueModel
from telescope.roles.reward import RewardFunction
from telescope.run import checkpoint
from telescope.run.evaluate import evaluate


def open_run(
    run: Path, overrides: Sequence[tuple[str, str]] = ()
) -> tuple[Config, Path, dict[str, Any]]:
    """A run's config, its newest checkpoint and that one's manifest."""
    recipe = run / "config.toml"
    if not recipe.is_file():
        raise TelescopeError(
            f"{run} is not a run folder: it has no config.toml; give one like runs/arithmetic"
        )
    found = checkpoint.list_checkpoints(run / "checkpoints")
    if not found:
        raise TelescopeError(f"{run} has no checkpoint yet: train it first")
    return load_config(recipe, overrides), found[-1], checkpoint.check(found[-1])


def evaluate_run(
    run: Path,
    reward: RewardFunction | Mapping[str, RewardFunction] | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    rows: Sequence[dict[str, Any]] | None = None,
) -> dict[str, float]:
    """eval/* of the newest checkpoint, with some settings changed, on its held-out prompts or on `rows` like those of its data.

    A run whose reward was given to Trainer in Python needs it here too.
    """
    config, path, manifest = open_run(run, overrides)
    actor = build_actor(config)
    _restore(path, "actor", actor.model)
    actor.sampler.version = -1  # whatever it has, it is not these weights
    held_out = (
        build_data(config, actor.tokenizer)[1]
        if rows is None
        else PromptSet(rows, actor.tokenizer, config.data)
    )
    if held_out is None:
        raise TelescopeError(
            f"{run} has no held-out prompts: set data.eval_files in {run / 'config.toml'}"
        )
    if manifest["reward_in_python"] and reward is None:
        raise TelescopeError(
            f"{run} was trained with the reward {', '.join(manifest['reward'])}, given in Python, not in its config.toml: "
            "call telescope.run.export.evaluate_run(run, reward=...) with it"
        )
    return evaluate(
        actor, build_reward(config, actor.tokenizer, actor.model.device, reward), held_out, config
    )


def export_run(run: Path, folder: Path, *, adapter: bool = False) -> int:
    """The actor into `folder`, the critic, if there is one, into `folder`/critic, in `model.dtype`; returns the step.

    Adapters are merged, or with `adapter` all there is.
    """
    config, path, _ = open_run(run)
    if adapter and not config.model.lora_rank:
        raise TelescopeError(
            f"{run} has no adapters: it was trained without model.lora_rank; leave out --adapter"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TelescopeError(f"{folder} exists already: give a new folder")
    source, cpu = resolve_model(config), torch.device("cpu")
    temporary = folder.absolute().parent / f".exporting-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        parts: list[tuple[str, Any, Path]] = [
            ("actor", load_policy, temporary),
            (
                "critic",
                partial(load_critic, bins=config.critic.histogram, head_seed=config.head_seed),
                temporary / "critic",
            ),
        ]
        for role, load, place in parts if config.credit.by_critic else parts[:1]:
            model = load(source, cpu)
            _restore(path, role, model)
            if not adapter:
                merge_adapters(model)
            with quiet():
                if adapter and not isinstance(model, ValueModel):
                    save_adapters(model, place, trained_weights(model))
                else:
                    model.save_pretrained(place)
        load_tokenizer(source.path, trust_remote_code=source.trust_remote_code).save_pretrained(
            temporary
        )
        folder.mkdir(exist_ok=True)
        for child in temporary.iterdir():
            child.rename(folder / child.name)
        temporary.rmdir()
    except (OSError, SafetensorError) as error:
        raise TelescopeError(
            f"cannot write {folder}: {getattr(error, 'strerror', None) or error}"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return int(path.name.removeprefix("step_"))


def _restore(path: Path, role: str, model: Any) -> None:
    """A checkpoint's weights for a model that was loaded from where the run got it."""
    checkpoint.check_origin(path, {role: fingerprint(model)})
    load_weights(checkpoint.shards_of(path, role), model)
