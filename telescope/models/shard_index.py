"""Reads the index of a distributed checkpoint without trusting it.

torch writes the index, `.metadata`, as a pickle, and a pickle can call any function. Here every
name in it stands for plain data: a class becomes an empty record, and the index that torch reads is
built from the records. A name that torch does not write is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from telescope.config.paths import check_ordinary
from telescope.errors import TelescopeError

NAME = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}


def read_index(folder: Path) -> Metadata:
    """The index of the tensors in `folder`. Raises UnpicklingError where it is not one."""
    path = folder / NAME
    check_ordinary(path)
    loader = _Loader(io.BytesIO(path.read_bytes()), path)
    try:
        index = _index(loader.load())
    except (TelescopeError, pickle.UnpicklingError):
        raise
    except Exception as error:  # a damaged pickle fails in any way
        raise pickle.UnpicklingError(f"{NAME} is not an index of tensors ({error})") from None
    for place in index.storage_data.values():
        if (folder / place.relative_path).exists():
            check_ordinary(folder / place.relative_path)
    return index


class Reader(FileSystemReader):
    """torch's reader of distributed checkpoints, with `read_index` for its index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_index(Path(self.path))


class _Record:
    """Stands for an object of torch: keeps its class's name and what was pickled of it."""

    kind = ""

    def __setstate__(self, fields: Any) -> None:
        self.fields = fields


class _Loader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file)
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a global of the pickle. It is made anew, so nothing can be changed."""
        if (module, name) in _RECORDS:
            return type(name, (_Record,), {"kind": name})
        made: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch", "Size"): lambda sizes=(): torch.Size(sizes),
            ("torch.serialization", "_get_layout"): lambda layout: layout,
            (_METADATA, "_MEM_FORMAT_ENCODING"): lambda number: number,
        }
        if (module, name) in made:
            return made[module, name]
        if module.partition(".")[0] == "pathlib" and name.endswith("Path"):
            return lambda *parts: PurePosixPath(*parts)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise TelescopeError(
            f"{self.path} asks to run {module}.{name}, which no checkpoint needs: nothing was run; "
            "it was not written by telescope, so do not use it"
        )


def _index(found: Any) -> Metadata:
    fields = _fields(found, "Metadata")
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
        _text(name): _tensor(entry) for name, entry in fields["state_dict_metadata"].items()
    }
    places = {_key(key): _place(value) for key, value in fields["storage_data"].items()}
    # `planner_data` says where a tensor was in a nested state; ours are flat.
    flat = {name: (name,) for name in tensors}
    return Metadata(tensors, planner_data=flat, storage_data=places, storage_meta=StorageMeta())


def _tensor(entry: Any) -> TensorStorageMetadata:
    # Bytes instead of a tensor would be unpickled by torch without any restriction.
    fields = _fields(entry, "TensorStorageMetadata")
    dtype, *_ = _fields(fields["properties"], "TensorProperties")
    if not isinstance(dtype, torch.dtype):
        raise pickle.UnpicklingError(f"{NAME} has a tensor without a type")
    chunks = []
    for chunk in fields["chunks"]:
        part = _fields(chunk, "ChunkStorageMetadata")
        chunks.append(ChunkStorageMetadata(torch.Size(part["offsets"]), torch.Size(part["sizes"])))
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(fields["size"]), chunks)


def _key(key: Any) -> MetadataIndex:
    fields = _fields(key, "MetadataIndex")
    offset = fields.get("offset")
    place = None if offset is None else torch.Size(offset)
    return MetadataIndex(_text(fields["fqn"]), place, fields.get("index"))


def _place(value: Any) -> _StorageInfo:
    fields = _fields(value, "_StorageInfo")
    name = _text(fields["relative_path"])
    if Path(name).name != name or fields.get("transform_descriptors"):
        raise TelescopeError(
            f"the index of a checkpoint names the file {name!r} outside its folder: "
            "it was not written by telescope, so do not use it"
        )
    return _StorageInfo(name, int(fields["offset"]), int(fields["length"]))


def _fields(found: Any, kind: str) -> Any:
    """What was pickled of an object that must be of this kind."""
    if not isinstance(found, _Record) or found.kind != kind:
        raise pickle.UnpicklingError(f"{NAME} has a {type(found).__name__} instead of a {kind}")
    wanted = tuple if kind == "TensorProperties" else Mapping
    if not isinstance(found.fields, wanted):
        raise pickle.UnpicklingError(f"{NAME} has a {kind} without its fields")
    return found.fields


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise pickle.UnpicklingError(f"{NAME} has a name that is no text")
    return name
