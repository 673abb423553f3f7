"""Checkpoints: whole or not at all.

    checkpoints/step_000040/  checkpoint.json  shards/actor/  shards/critic/  state.pt

The shards hold what training changes in a role, by parameter name: float32 weights, Adam's moments and steps, the update count.
The rest of a model comes from where the run got it. A checkpoint is written next to its place and renamed into it;
checkpoint.json lists every file with its size and checksum.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch

from telescope.errors import TelescopeError, WorkerError
from telescope.models import shards

_MANIFEST = "checkpoint.json"
_FORMAT = 2  # 1 held Hugging Face folders
_LISTED = {
    "files": dict,
    "trained": dict,
    "reward": list,
    "reward_in_python": bool,
    "actor": str,
    "critic": str,
    "model_path": str,
}


class Role(Protocol):
    """What a checkpoint asks of actor and critic."""

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


def save(
    folder: Path,
    step: int,
    *,
    actor: Role,
    critic: Role,
    state: dict[str, Any],
    manifest: dict[str, Any],
    keep: int,
) -> Path:
    """Writes step `step`, then removes all but the newest `keep`. If it fails, what was there before is untouched."""
    final = folder / f"step_{step:06d}"
    temporary, replaced = (
        folder / f".{what}-{final.name}-{os.getpid()}" for what in ("writing", "replaced")
    )
    try:
        temporary.mkdir(parents=True)
        for name, role in (("actor", actor), ("critic", critic)):
            role.save(place := shards_of(temporary, name))
            if not shards.is_complete(place):
                raise TelescopeError(
                    f"the {name}'s workers wrote elsewhere: `dir` must be on a disk that every node shares"
                )
        torch.save({**state, "rng": rng_state()}, temporary / "state.pt")
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        files = {
            str(path.relative_to(temporary)): seal
            for path, seal in zip(paths, _seals(paths), strict=True)
        }
        (temporary / _MANIFEST).write_text(
            json.dumps({"step": step, "format": _FORMAT, **manifest, "files": files}, indent=1),
            "utf-8",
        )
        _sync(temporary / _MANIFEST)
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        _sync(folder)
    except WorkerError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a full disk is reported in several ways
        if replaced.exists() and not final.exists():
            replaced.rename(final)
        older = [path.name for path in list_checkpoints(folder)]
        rest = (
            f"{older[-1]} is intact; free some space and go on with --resume"
            if older
            else "no earlier checkpoint exists"
        )
        raise TelescopeError(
            f"cannot save checkpoint {final}: {str(error).splitlines()[0]}; {rest}"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def shards_of(path: Path, role: str) -> Path:
    return path / "shards" / role


def list_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    try:
        found = [
            p
            for p in folder.glob("step_*")
            if re.fullmatch(r"step_\d+", p.name) and (p / _MANIFEST).is_file()
        ]
    except OSError as error:  # that there is no such folder is none
        raise TelescopeError(
            f"cannot read {folder}: {error.strerror}; use another --name or `dir`"
        ) from error
    return sorted(found, key=lambda p: int(p.name.removeprefix("step_")))


def remove_leftovers(folder: Path) -> None:
    """What a killed process was writing goes; what it had set aside and not yet replaced comes back."""
    for path in folder.glob(".replaced-step_*"):
        original = folder / path.name.removeprefix(".replaced-").rpartition("-")[0]
        if not original.exists():
            path.rename(original)
    for path in (*folder.glob(".writing-*"), *folder.glob(".replaced-*")):
        shutil.rmtree(path, ignore_errors=True)


def check(path: Path, *, origin: dict[str, Any] | None = None) -> dict[str, Any]:
    """The manifest, after checking that every file is as it was written, and that it belongs to what `origin` names."""
    manifest = _manifest(path)
    files = {path / name: seal for name, seal in manifest["files"].items()}
    for file, seal in files.items():
        if not file.is_file():
            raise _damaged(path, f"{file.relative_to(path)} is missing")
        if file.stat().st_size != seal["bytes"]:
            raise _damaged(
                path,
                f"{file.relative_to(path)} has {file.stat().st_size} bytes instead of {seal['bytes']}",
            )
    for (file, seal), found in zip(files.items(), _seals(files), strict=True):
        if found != seal:
            raise _damaged(
                path, f"{file.relative_to(path)} is not what was written (its checksum differs)"
            )
    check_origin(path, origin or {})
    return manifest


def check_origin(path: Path, origin: dict[str, Any]) -> None:
    """Refuses a checkpoint of another reward or of other models than these, as far as they are named."""
    manifest = _manifest(path)
    for name, value in origin.get("trained", {}).items():
        if (was := manifest["trained"].get(name, value)) != value:  # an older one may not say
            raise TelescopeError(
                f"checkpoint {path} was trained with {name} = {was}, and the config says {value}: set it back, or use another --name"
            )
    if manifest["reward"] != origin.get("reward", manifest["reward"]):
        raise TelescopeError(
            f"checkpoint {path} was trained with the reward {', '.join(manifest['reward'])}, not {', '.join(origin['reward'])}: "
            + (
                "pass the same reward= to Trainer"
                if manifest["reward_in_python"]
                else "use the same one, or another --name"
            )
        )
    for role in ("actor", "critic"):
        if manifest[role] != origin.get(role, manifest[role]):
            raise TelescopeError(
                f"checkpoint {path} belongs to another model: it started from {manifest['model_path']} with {role} {manifest[role]}, "
                f"the config names one with {role} {origin[role]}; use the model the run was started with, or another --name"
            )


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_text("utf-8"))
        version, files = manifest.get("format"), manifest["files"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, f"{_MANIFEST} cannot be read") from None
    if version != _FORMAT:
        raise TelescopeError(
            f"checkpoint {path} was written by another version of telescope, and this one cannot read it: use that one"
        )
    wrong = [name for name, kind in _LISTED.items() if not isinstance(manifest.get(name), kind)]
    wrong = wrong or [
        name
        for name, seal in files.items()
        if not isinstance(seal, dict) or not {"bytes", "crc32"} <= seal.keys()
    ]
    if wrong:
        raise _damaged(path, f"{_MANIFEST} does not say what it should of `{wrong[0]}`")
    return manifest


def load(path: Path, *, actor: Role, critic: Role) -> dict[str, Any]:
    """Gives the roles what is theirs and returns the rest of the state; random generators are restored."""
    try:
        actor.load(shards_of(path, "actor"))
        critic.load(shards_of(path, "critic"))
        state: dict[str, Any] = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
    except TelescopeError:
        raise
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise _damaged(path, (str(error) or type(error).__name__).splitlines()[0]) from error
    if not isinstance(state, dict) or "rng" not in state:
        raise _damaged(path, "state.pt is not the state of a run")
    set_rng_state(state.pop("rng"))
    return state


def _damaged(path: Path, what: str) -> TelescopeError:
    older = [p.name for p in list_checkpoints(path.parent) if p.name < path.name]
    remedy = (
        f"move {path.name} away to go on from {older[-1]}"
        if older
        else "there is no older checkpoint to go back to"
    )
    return TelescopeError(f"checkpoint {path} is damaged: {what}; {remedy}")


def _seals(paths: Iterable[Path]) -> list[dict[str, int]]:
    """Of all files, several at a time: there are as many as workers."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(_seal, paths))


def _seal(path: Path) -> dict[str, int]:
    """Size and checksum of a file, which is on the disk when this returns."""
    _sync(path)
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return {"bytes": path.stat().st_size, "crc32": checksum}


def rng_state() -> dict[str, Any]:
    """The global generators. Telescope draws from none of them; a reward function may."""
    import numpy

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    legacy: Any = numpy.random.get_state()
    kind, keys, *rest = legacy
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


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
