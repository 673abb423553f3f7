"""A checkpoint of a run as ordinary Hugging Face folders, here or on the hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from telescope.errors import TelescopeError
from telescope.models.load import load_critic, load_policy, load_tokenizer_of, quiet
from telescope.models.lora import merge_adapters, save_adapters, trained_weights
from telescope.models.value import ValueModel
from telescope.roles.factory import resolve_model
from telescope.run.manifest import sync
from telescope.run.saved import SavedRun, open_run


def export_run(
    run: Path | str,
    folder: Path | str,
    *,
    step: int | Literal["best"] | None = None,
    adapter: bool = False,
    trusted: bool = False,
) -> int:
    """Writes the actor into `folder` and the critic, if any, into `folder`/critic.

    `step` chooses the checkpoint: that of a step, or the best by `eval.best`; default: the newest.
    Weights are in `model.dtype`. LoRA adapters are merged into them; with `adapter` they are
    written alone. `trusted`: the run may name code that this user has not trained with. Returns
    the step of the checkpoint.
    """
    run, folder = Path(run), Path(folder)
    saved = open_run(run, step=step, trusted=trusted, functions=False)
    if adapter and not saved.config.model.lora_rank:
        raise TelescopeError(
            f"{run} has no adapters: it was trained without model.lora_rank; leave out --adapter"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TelescopeError(f"{folder} exists already: give a new folder")
    temporary = folder.absolute().parent / f".exporting-{os.getpid()}"
    try:
        _remove_leftovers(temporary.parent)
        temporary.mkdir(parents=True)
        _write(saved, temporary, adapter=adapter)
        for path in temporary.rglob("*"):
            sync(path)
        folder.mkdir(exist_ok=True)
        for child in temporary.iterdir():
            child.rename(folder / child.name)
        temporary.rmdir()
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TelescopeError(f"cannot write {folder}: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return saved.step


def push_to_hub(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Uploads an exported folder to the model repository `name`, and returns its address.

    The repository is made if it does not exist. The token is that of `hf auth login`, or HF_TOKEN.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi()
    http_error: Any = vars(errors)["HTTPError"]  # of the HTTP library that this version uses
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=message)
    except (http_error, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TelescopeError(
            f"cannot push to {name}: {reason}; {folder} is complete: log in with `hf auth login` "
            "or set HF_TOKEN, check the name (user/model), and upload that folder"
        ) from error
    return str(made)


def _remove_leftovers(folder: Path) -> None:
    """Removes what killed processes were writing."""
    for path in folder.glob(".exporting-*"):
        number = path.name.removeprefix(".exporting-")
        if not number.isdecimal():
            continue
        try:
            os.kill(int(number), 0)  # asks whether the process exists
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except (OSError, OverflowError):
            continue


def _write(saved: SavedRun, folder: Path, *, adapter: bool) -> None:
    """Writes actor, critic and tokenizer, loaded one after the other to save memory."""
    config = saved.config
    source = resolve_model(config)
    cpu = torch.device("cpu")

    actor = load_policy(source, cpu)
    saved.load_weights("actor", actor)
    write_model(actor, folder, adapter=adapter)
    del actor

    if config.credit.by_critic:
        critic = load_critic(source, cpu, bins=config.critic.histogram, head_seed=config.head_seed)
        saved.load_weights("critic", critic)
        write_model(critic, folder / "critic", adapter=adapter)

    tokenizer = load_tokenizer_of(source)
    tokenizer.save_pretrained(folder)


def write_model(model: Any, folder: Path, *, adapter: bool) -> None:
    """Writes a model as a Hugging Face folder; `adapter`: only its LoRA adapters."""
    if not adapter:
        merge_adapters(model)
    with quiet():
        if adapter and not isinstance(model, ValueModel):
            save_adapters(model, folder, trained_weights(model))
        else:
            model.save_pretrained(folder)
