"""Tensors on disk by name, as torch's distributed checkpoints.

Each rank writes its shards. Any number of ranks can read them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from telescope.errors import TelescopeError
from telescope.models.lora import trained_weights


def save(folder: Path, state: dict[str, Tensor]) -> None:
    """Writes the tensors: with several ranks a collective, in which each writes its shards."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_state

    with _as_one_error():
        save_state(state, storage_writer=FileSystemWriter(folder))


def load(folder: Path, state: dict[str, Tensor]) -> None:
    """Fills the tensors of `state` in place by name, however they were sharded when stored."""
    from torch.distributed.checkpoint.state_dict_loader import load as load_state

    from telescope.models.shard_index import Reader

    if not is_complete(folder):
        raise TelescopeError(
            f"a process cannot see all of {folder}: `dir` must be on a disk that every node shares"
        )
    with _as_one_error():
        load_state(state, storage_reader=Reader(folder))


def load_weights(folder: Path, model: nn.Module) -> None:
    """Loads only the trained weights of what `Learner.save` wrote."""
    load(folder, {f"weight/{name}": value for name, value in trained_weights(model).items()})


def is_complete(folder: Path) -> bool:
    """Whether every file that the index names is here."""
    from telescope.models.shard_index import NAME, read_index

    if not (folder / NAME).is_file():
        return False
    names = {place.relative_path for place in read_index(folder).storage_data.values()}
    return all((folder / name).is_file() for name in names)


@contextmanager
def _as_one_error() -> Iterator[None]:
    """Raises the failure of any rank as one ordinary error.

    torch's own is not an Exception, and its text holds all ranks' tracebacks.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns if there is no process group
            yield
    except CheckpointException as failed:
        rank, (error, _) = next(iter(failed.failures.items()))
        others = f" (process {rank} and others)" if len(failed.failures) > 1 else ""
        raise RuntimeError(f"{error}{others}") from error
