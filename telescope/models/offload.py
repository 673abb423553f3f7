"""Tensors that are in host memory except while they are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class HostMemory:
    """Keeps values in pinned host memory, and frees the device's memory meanwhile.

    A tensor that was moved out keeps its shape, type and device. Only its storage is empty, so it
    must not be read until it is back. Tensors that share a storage move together. Copies are
    ordered like everything else on the device, so nothing waits for them.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Tensor]] = {}
        """Storages and their values on the host. A storage that is held keeps its address."""

    def move_out(self, tensors: Iterable[Tensor], *, changed: bool = True) -> None:
        """Copies values to the host and frees their storages.

        Without `changed`, values that the host has already are not copied again.
        """
        for storage in _storages(tensors):
            size = storage.nbytes()
            if not size or not storage.resizable():  # is out already, or belongs to a file
                continue
            is_new = storage._cdata not in self._copies
            if is_new:
                pinned = storage.device.type == "cuda"
                copy = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
                self._copies[storage._cdata] = (storage, copy)
            if is_new or changed:
                _, copy = self._copies[storage._cdata]
                copy.copy_(_as_bytes(storage), non_blocking=True)
            storage.resize_(0)

    def move_in(self, tensors: Iterable[Tensor]) -> None:
        """Gives tensors their values back."""
        for storage in _storages(tensors):
            if storage._cdata in self._copies and not storage.nbytes():
                _, copy = self._copies[storage._cdata]
                storage.resize_(copy.numel())
                _as_bytes(storage).copy_(copy, non_blocking=True)

    @contextmanager
    def on_device(self, tensors: Iterable[Tensor], *, changed: bool = True) -> Iterator[None]:
        """Within it the tensors can be used."""
        tensors = list(tensors)
        self.move_in(tensors)
        try:
            yield
        finally:
            self.move_out(tensors, changed=changed)

    def host_copy(self, tensor: Tensor) -> Tensor:
        """The values of a tensor that was moved out, in host memory; of any other, itself."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._copies or storage.nbytes():
            return tensor
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        _, copy = self._copies[storage._cdata]
        start = tensor.storage_offset() * tensor.element_size()
        length = tensor.numel() * tensor.element_size()
        return copy[start : start + length].view(tensor.dtype).view(tensor.shape)


def _storages(tensors: Iterable[Tensor]) -> list[Any]:
    """The storages of the tensors, each once."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        found[storage._cdata] = storage
    return list(found.values())


def _as_bytes(storage: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
