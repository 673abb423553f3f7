"""Checkpoints: whole or not at all.

    checkpoints/step_000040/  checkpoint.json  actor/  critic/ (Hugging Face folders)  state.pt

A checkpoint is written next to its place and renamed into it; checkpoint.json lists every file with its size.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from telescope.errors import TelescopeError
from telescope.models.load import ValueModel, quiet

_MANIFEST = "checkpoint.json"


def save(
    folder: Path, step: int, *, actor: Any, tokenizer: Any, critic: ValueModel, state: dict[str, Any], manifest: dict[str, Any], keep: int
) -> Path:
    """Writes step `step`, then removes all but the newest `keep`. If it fails, what was there before is untouched."""
    final = folder / f"step_{step:06d}"
    temporary = folder / f".writing-{final.name}-{os.getpid()}"
    try:
        (temporary / "actor").mkdir(parents=True)
        with quiet():
            actor.save_pretrained(temporary / "actor")
            tokenizer.save_pretrained(temporary / "actor")
            critic.save_pretrained(temporary / "critic")
        torch.save({**state, "rng": rng_state()}, temporary / "state.pt")
        files = {str(p.relative_to(temporary)): p.stat().st_size for p in sorted(temporary.rglob("*")) if p.is_file()}
        (temporary / _MANIFEST).write_text(json.dumps({"step": step, **manifest, "files": files}, indent=1), "utf-8")
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        replaced = folder / f".replaced-{final.name}-{os.getpid()}"
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        _sync(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors report a full disk in their own ways
        shutil.rmtree(temporary, ignore_errors=True)
        older = [path.name for path in list_checkpoints(folder)]
        rest = f"{older[-1]} is intact; free some space and go on with --resume" if older else "no earlier checkpoint exists"
        raise TelescopeError(f"cannot save checkpoint {final}: {str(error).splitlines()[0]}; {rest}") from error
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def list_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    found = [p for p in folder.glob("step_*") if re.fullmatch(r"step_\d+", p.name) and (p / _MANIFEST).is_file()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step_")))


def check(path: Path, *, fingerprint: str | None = None) -> dict[str, Any]:
    """The manifest, after checking that every file is there in full and that it belongs to the model named in the config."""
    try:
        manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_text("utf-8"))
        files = manifest["files"]
    except (OSError, ValueError, KeyError) as error:
        raise TelescopeError(f"{path} is not a checkpoint: {error}") from None
    for name, size in files.items():
        file = path / name
        actual = file.stat().st_size if file.is_file() else None
        if actual != size:
            state = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
            older = [p.name for p in list_checkpoints(path.parent) if p.name < path.name]
            remedy = f"move {path.name} away to go on from {older[-1]}" if older else "there is no older checkpoint to go back to"
            raise TelescopeError(f"checkpoint {path} is damaged: {name} {state}; {remedy}")
    if fingerprint is not None and manifest["start_model"] != fingerprint:
        raise TelescopeError(
            f"checkpoint {path} belongs to another model: it started from {manifest['model_path']} "
            f"(fingerprint {manifest['start_model']}), the config names one with fingerprint {fingerprint}; "
            "use the model the run was started with, or another --name"
        )
    return manifest


def load(path: Path, *, actor: nn.Module, critic: ValueModel) -> dict[str, Any]:
    """Puts the weights into the models and returns the rest of the state; random generators are restored."""
    try:
        weights: dict[str, Any] = {}
        for file in sorted((path / "actor").glob("*.safetensors")):
            weights |= load_file(file)
        missing, unexpected = actor.load_state_dict(weights, strict=False)
        tied = set(getattr(actor, "_tied_weights_keys", None) or [])
        if unexpected or set(missing) - tied:
            raise TelescopeError(f"checkpoint {path} belongs to another model: {(list(unexpected) + list(missing))[0]} does not fit")
        critic.load_weights(path / "critic")
        state: dict[str, Any] = torch.load(path / "state.pt", weights_only=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise TelescopeError(f"checkpoint {path} cannot be read: {str(error).splitlines()[0]}") from error
    set_rng_state(state.pop("rng"))
    return state


def rng_state() -> dict[str, Any]:
    """The global generators. Telescope draws from none of them; a reward function may."""
    import numpy

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    legacy: Any = numpy.random.get_state()
    kind, keys, *rest = legacy
    return {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest], "torch": torch.get_rng_state(), "cuda": cuda}


def set_rng_state(state: dict[str, Any]) -> None:
    import numpy

    random.setstate(state["python"])
    numpy.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
