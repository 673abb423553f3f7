"""Checkpoints: written whole or not at all.

    checkpoints/step_000040/  checkpoint.json  shards/actor/  shards/critic/  state.pt

The shards hold what training changes in a role, by parameter name: float32 weights, Adam's moments
and steps, the update count. Frozen weights are not saved: they come from the model the run started
from. A checkpoint is written to a temporary folder next to its place, then renamed.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from telescope.config.paths import check_ordinary
from telescope.data.rng import rng_state, set_rng_state
from telescope.errors import DivergedError, TelescopeError, WorkerError
from telescope.models import shards
from telescope.run.manifest import (
    Manifest,
    check_files,
    check_origin,
    damaged,
    list_checkpoints,
    read_manifest,
    step_of,
    sync,
    write_manifest,
)


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
    state: Mapping[str, Any],
    manifest: Mapping[str, Any],
    keep: int,
    best: int | None = None,
) -> Path:
    """Writes the checkpoint of `step`, then removes all but the newest `keep` and that of `best`.

    If it fails, the checkpoints that were there before are untouched.
    """
    final = folder / f"step_{step:06d}"
    temporary = folder / f".writing-{final.name}-{os.getpid()}"
    replaced = folder / f".replaced-{final.name}-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        _save_role("actor", actor, temporary)
        _save_role("critic", critic, temporary)
        torch.save({**state, "rng": rng_state()}, temporary / "state.pt")
        write_manifest(temporary, step, {**manifest, "best": best})
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        sync(folder)
    except WorkerError:
        raise
    except DivergedError as error:
        raise TelescopeError(f"{error}; {way_back(folder, step)}") from error
    except (OSError, RuntimeError, ValueError) as error:  # a full disk is reported in several ways
        if replaced.exists() and not final.exists():
            replaced.rename(final)
        raise _cannot_save(final, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in list_checkpoints(folder)[:-keep]:
        if step_of(old) != best:
            _remove(old)
    return final


def _remove(old: Path) -> None:
    """Removes a checkpoint: renamed first, so that nobody sees a part of it.

    The new name is on disk before the files go, else a power cut could leave a part of it.
    """
    removing = old.with_name(f".removing-{old.name}-{os.getpid()}")
    old.rename(removing)
    sync(old.parent)
    shutil.rmtree(removing, ignore_errors=True)


def _save_role(name: str, role: Role, checkpoint: Path) -> None:
    place = shards_of(checkpoint, name)
    role.save(place)
    if not shards.is_complete(place):
        raise TelescopeError(
            f"the {name}'s workers wrote elsewhere: `dir` must be on a disk that every node shares"
        )


def _cannot_save(final: Path, error: Exception) -> TelescopeError:
    reason = str(error).splitlines()[0]
    if "inline_container" in reason or "PytorchStreamWriter" in reason:  # torch's own words
        reason = "a file could not be written whole, so the disk is full or fails"
    older = list_checkpoints(final.parent)
    remedy = "no earlier checkpoint exists"
    if older:
        remedy = f"{older[-1].name} is intact; free some space and continue with --resume"
    return TelescopeError(f"cannot save checkpoint {final}: {reason}; {remedy}")


def way_back(folder: Path, step: int) -> str:
    """What to do when training cannot go on from the weights after `step`."""
    saved = list_checkpoints(folder)
    good = [path.name for path in saved if step_of(path) < step]
    if not saved:
        return "no checkpoint was written: start again"
    if not good:
        return f"{saved[-1].name} has these weights, and no older one is left: use another --name"
    if step_of(saved[-1]) < step:
        return f"{good[-1]} is the last good checkpoint: continue from it with --resume"
    return f"{saved[-1].name} has the weights that led here: go back with --resume-from {good[-1]}"


def chosen(folder: Path, name: str) -> list[Path]:
    """The checkpoints up to the one that is called `name`: step_000040, or 40."""
    found = list_checkpoints(folder)
    number = name.removeprefix("step_")
    wanted = int(number) if number.isdecimal() else None
    if wanted not in [step_of(path) for path in found]:
        there = ", ".join(path.name for path in found) or "none"
        raise TelescopeError(f"--resume-from {name}: {folder} has {there}")
    return [path for path in found if step_of(path) <= wanted]


def set_aside(folder: Path, *, after_step: int) -> list[str]:
    """Renames checkpoints after a step, so that no start takes them for the newest."""
    names = []
    for path in list_checkpoints(folder):
        if step_of(path) > after_step:
            aside = path.with_name(f"discarded_{path.name}")
            if aside.exists():
                shutil.rmtree(aside)
            path.rename(aside)
            names.append(aside.name)
    if names:
        sync(folder)
    return names


def shards_of(checkpoint: Path, role: str) -> Path:
    return checkpoint / "shards" / role


def remove_leftovers(folder: Path) -> None:
    """Cleans up after a killed process: restores what it set aside, deletes what it was writing."""
    for path in folder.glob(".replaced-step_*"):
        name, _, _ = path.name.removeprefix(".replaced-").rpartition("-")
        original = folder / name
        if not original.exists():
            path.rename(original)
    leftovers = [
        path
        for pattern in (".writing-*", ".replaced-*", ".removing-*")
        for path in folder.glob(pattern)
    ]
    if leftovers:
        # The killed process may not have come so far. Until the names are on disk, a power cut
        # could bring back the old ones, with a part of the files.
        sync(folder)
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)


def check(path: Path, *, origin: Mapping[str, Any] | None = None) -> Manifest:
    """Checks every file, and the reward and models that `origin` names. Returns the manifest."""
    manifest = read_manifest(path)
    check_files(path, manifest.files)
    check_origin(path, manifest, origin or {})
    return manifest


def load(path: Path, *, actor: Role, critic: Role) -> dict[str, Any]:
    """Loads the roles and the random generators, and returns the rest of the state."""
    with explained(path):
        actor.load(shards_of(path, "actor"))
        critic.load(shards_of(path, "critic"))
        check_ordinary(path / "state.pt")
        try:
            state = torch.load(path / "state.pt", weights_only=True, map_location="cpu")
        except pickle.UnpicklingError:  # torch's own words advise to read it without this limit
            raise damaged(path, "state.pt holds more than numbers, so it was not read") from None
    if not isinstance(state, dict) or "rng" not in state:
        raise damaged(path, "state.pt is not the state of a run")
    set_rng_state(state.pop("rng"))
    return state


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of reading the checkpoint's files into one line that names it."""
    try:
        yield
    except TelescopeError:
        raise
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error) or type(error).__name__
        raise damaged(path, reason.splitlines()[0]) from error
