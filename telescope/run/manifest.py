"""checkpoint.json: what a checkpoint belongs to, and every file in it with size and checksum."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from telescope.config.paths import check_ordinary
from telescope.errors import TelescopeError

NAME = "checkpoint.json"
FORMAT = 2
"""Format 1 held Hugging Face folders."""


class FileEntry(BaseModel):
    """What a file of the checkpoint was when it was written."""

    model_config = ConfigDict(frozen=True)
    bytes: int
    crc32: int


class Manifest(BaseModel):
    """The content of checkpoint.json, besides `step` and `format`."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())
    actor: str
    """Checksum of the weights that the actor started from."""
    critic: str
    model_path: str
    reward: list[str]
    """Names of the reward's parts."""
    reward_in_python: bool
    """The reward was passed to Trainer, so config.toml does not name it."""
    trained: dict[str, Any]
    """Settings that decide which weights exist, e.g. model.lora_rank."""
    best: int | None = None
    """Step of the best checkpoint so far, by `eval.best`."""
    files: dict[str, FileEntry]


def write_manifest(folder: Path, step: int, origin: Mapping[str, Any]) -> None:
    """Writes checkpoint.json for the files in `folder`, and waits until all of them are on disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = zip(paths, _describe_all(paths), strict=True)
    files = {str(path.relative_to(folder)): entry.model_dump() for path, entry in entries}
    content = {"step": step, "format": FORMAT, **origin, "files": files}
    (folder / NAME).write_text(json.dumps(content, indent=1), "utf-8")
    sync(folder / NAME)
    for inner in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        sync(inner)


def read_manifest(folder: Path) -> Manifest:
    """Reads checkpoint.json, and refuses one that is damaged or of another version."""
    try:
        check_ordinary(folder / NAME)
        content = json.loads((folder / NAME).read_text("utf-8"))
        version = content.get("format")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise damaged(folder, f"{NAME} cannot be read") from None
    if version != FORMAT:
        raise TelescopeError(
            f"checkpoint {folder} was written by another version of telescope, and this one cannot "
            "read it: use that version"
        )
    step = content.get("step")
    if folder.name.startswith("step_") and step != step_of(folder):
        raise damaged(folder, f"{NAME} is that of step {step}")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = " → ".join(f"`{part}`" for part in first["loc"])
        raise damaged(folder, f"{NAME} cannot be read ({where}: {first['msg']})") from None


def check_files(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Refuses a checkpoint if a file is missing or not as it was written."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"{name} is missing")
        size = path.stat().st_size
        if size != entry.bytes:
            raise damaged(folder, f"{name} has {size} bytes instead of {entry.bytes}")
    found = _describe_all(folder / name for name in files)
    for (name, entry), now in zip(files.items(), found, strict=True):
        if now != entry:
            raise damaged(folder, f"{name} is not what was written (its checksum differs)")


def check_origin(folder: Path, manifest: Manifest, origin: Mapping[str, Any]) -> None:
    """Refuses a checkpoint of another reward or other models. Checks only what `origin` names."""
    for name, value in origin.get("trained", {}).items():
        before = manifest.trained.get(name, value)  # an older checkpoint may not say
        if before != value:
            raise TelescopeError(
                f"checkpoint {folder} was trained with {name} = {before}, and the config says "
                f"{value}: set it back, or use another --name"
            )
    reward = origin.get("reward", manifest.reward)
    if reward != manifest.reward:
        remedy = "use the same one, or another --name"
        if manifest.reward_in_python:
            remedy = "pass the same reward= to Trainer"
        raise TelescopeError(
            f"checkpoint {folder} was trained with the reward {', '.join(manifest.reward)}, "
            f"not {', '.join(reward)}: {remedy}"
        )
    for role, before in (("actor", manifest.actor), ("critic", manifest.critic)):
        now = origin.get(role, before)
        if now != before:
            raise TelescopeError(
                f"checkpoint {folder} belongs to another model: it started from "
                f"{manifest.model_path} with {role} {before}, the config names one with {role} "
                f"{now}; use the model the run was started with, or another --name"
            )


def list_checkpoints(folder: Path) -> list[Path]:
    """Lists checkpoints, oldest first. A missing folder has none.

    A checkpoint has its name once all of it is on disk. One that lacks a part, as after a copy that
    was cut off, is damaged: an older one must not take its place unnoticed.
    """
    try:
        found = [path for path in folder.iterdir() if re.fullmatch(r"step_[0-9]{6,}", path.name)]
    except OSError as error:  # a folder that cannot be read may hold checkpoints
        if not os.path.lexists(folder):
            return []
        raise TelescopeError(
            f"cannot read {folder}: {error.strerror}; make it readable, or use another --name"
        ) from error
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_"))


def damaged(folder: Path, what: str) -> TelescopeError:
    """Makes the error for a damaged checkpoint: what is wrong, and which older one to use."""
    found = [path.name for path in list_checkpoints(folder.parent)]
    if not folder.exists() and found and found[-1] > folder.name:
        return TelescopeError(
            f"checkpoint {folder} was removed while it was read, because the run has written "
            f"{found[-1]} meanwhile: try again"
        )
    older = [name for name in found if name < folder.name]
    remedy = "there is no older checkpoint to go back to"
    if older:
        remedy = f"move {folder.name} away to continue from {older[-1]}"
    return TelescopeError(f"checkpoint {folder} is damaged: {what}; {remedy}")


def describe_file(path: Path) -> FileEntry:
    """Returns size and checksum of a file, once it is on disk."""
    sync(path)
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return FileEntry(bytes=path.stat().st_size, crc32=checksum)


def _describe_all(paths: Iterable[Path]) -> list[FileEntry]:
    """`describe_file` in several threads: a checkpoint has one file per worker."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(describe_file, paths))


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, and waits until it is on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # it may be a link to elsewhere
    temporary.write_bytes(content)
    sync(temporary)
    temporary.replace(path)


def sync(path: Path) -> None:
    """Waits until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
