"""Tensors on disk by name, as torch's distributed checkpoints: each process writes its slices, and any number of them reads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from telescope.errors import TelescopeError


def save(folder: Path, state: dict[str, Tensor]) -> None:
    """Where there are several processes, a meeting of all; none holds more than its slices."""
    import torch.distributed.checkpoint as dcp

    with _as_one():
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))


def load(folder: Path, state: dict[str, Tensor]) -> None:
    """Fills the tensors of `state` in place with what is stored under their names, however that was sliced."""
    import torch.distributed.checkpoint as dcp

    if not is_whole(folder):
        raise TelescopeError(
            f"a process cannot see all of {folder}: `dir` must be on a disk that every node shares"
        )
    with _as_one():
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder))


def load_weights(folder: Path, model: nn.Module) -> None:
    """The weights alone, of what `Learner.save` wrote."""
    load(
        folder,
        {f"weight/{name}": p.detach() for name, p in model.named_parameters() if p.requires_grad},
    )


def is_whole(folder: Path) -> bool:
    """Whether every file that the index names is here."""
    import torch.distributed.checkpoint as dcp

    if not (folder / ".metadata").is_file():
        return False
    stored = dcp.FileSystemReader(folder).read_metadata().storage_data.values()
    return all((folder / name).is_file() for name in {place.relative_path for place in stored})


@contextmanager
def _as_one() -> Iterator[None]:
    """A failure of any process as one ordinary error: torch's is no Exception, and its text has all their tracebacks."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a process is alone is no cause for concern
            yield
    except CheckpointException as failed:
        rank, (error, _) = next(iter(failed.failures.items()))
        raise RuntimeError(
            f"{error}" if len(failed.failures) == 1 else f"{error} (process {rank} and others)"
        ) from error
