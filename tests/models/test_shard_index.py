"""The index of a checkpoint is read as data: a stranger's cannot run code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from telescope.errors import TelescopeError
from telescope.models import shards
from telescope.models.shard_index import read_index


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    state = {
        "weight/a": torch.arange(6.0).reshape(2, 3),
        "step/a": torch.tensor(4.0),
        "updates": torch.tensor(7),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    shards.save(folder, state)
    return folder


class _Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_the_index_is_what_torch_reads(stored: Path):
    theirs = FileSystemReader(stored).read_metadata()
    ours = read_index(stored)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data
    assert ours.planner_data == theirs.planner_data


def test_tensors_come_back_as_they_were_stored(stored: Path):
    state = {"weight/a": torch.zeros(2, 3), "updates": torch.tensor(0)}
    shards.load(stored, state)
    assert state["weight/a"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert state["updates"] == 7


@pytest.mark.parametrize("load", [shards.is_complete, read_index])
def test_an_index_that_calls_a_function_is_refused_and_nothing_runs(
    load: Any, stored: Path, tmp_path: Path
):
    mark = tmp_path / "ran"
    (stored / ".metadata").write_bytes(pickle.dumps(_Runs(f"touch {mark}")))
    with pytest.raises(TelescopeError, match=r"system.*nothing was run"):
        load(stored)
    assert not mark.exists()


@pytest.mark.parametrize(
    "line",
    [
        b"cbuiltins\neval\n",
        b"ctorch\nload\n",
        b"ctorch\nserialization._get_layout\n",
        b"ctelescope.models.shards\nload\n",
    ],
)
def test_only_names_that_torch_writes_are_known(line: bytes, stored: Path):
    (stored / ".metadata").write_bytes(line + b".")
    with pytest.raises(TelescopeError, match="no checkpoint needs"):
        read_index(stored)


def test_bytes_in_place_of_a_tensor_are_refused(stored: Path):
    """torch would unpickle them without any restriction."""
    index = FileSystemReader(stored).read_metadata()
    index.state_dict_metadata["weight/a"] = BytesStorageMetadata()
    (stored / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(TelescopeError, match="BytesStorageMetadata"):
        read_index(stored)


def test_files_outside_the_folder_are_refused(stored: Path):
    one = torch.Size([1])
    chunk = ChunkStorageMetadata(torch.Size([0]), one)
    tensor = TensorStorageMetadata(TensorProperties(), one, [chunk])
    place = _StorageInfo("../../secret", 0, 1)
    index = Metadata({"a": tensor}, storage_data={MetadataIndex("a", torch.Size([0])): place})
    (stored / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(TelescopeError, match="outside its folder"):
        read_index(stored)


def test_a_pickle_cannot_change_the_classes_of_torch(stored: Path):
    before = dict(vars(Metadata))
    # GLOBAL Metadata, then BUILD with (None, {"x": 1}): sets attributes of the class itself.
    code = b"c" + Metadata.__module__.encode() + b"\nMetadata\n(N}S'x'\nI1\nstb."
    (stored / ".metadata").write_bytes(code)
    with pytest.raises(pickle.UnpicklingError):
        read_index(stored)
    assert dict(vars(Metadata)) == before


@pytest.mark.parametrize("content", [b"", b"\0" * 100, pickle.dumps(5), pickle.dumps({"a": 1})])
def test_a_damaged_index_is_an_unpickling_error(content: bytes, stored: Path):
    (stored / ".metadata").write_bytes(content)
    with pytest.raises(pickle.UnpicklingError):
        read_index(stored)
