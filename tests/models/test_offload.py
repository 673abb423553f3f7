"""Host memory: tensors that were moved out come back with their values, wherever they lie."""

from __future__ import annotations

import torch
from torch import Tensor

from telescope.models.offload import HostMemory
from tests.models.fast.test_packed import DEVICE


def numbers(count: int = 6) -> Tensor:
    return torch.arange(float(count), device=DEVICE)


def test_a_tensor_comes_back_with_its_values() -> None:
    tensor = numbers()
    host = HostMemory()
    host.move_out([tensor])
    assert tensor.untyped_storage().nbytes() == 0
    assert tensor.shape == (6,)
    assert tensor.device.type == DEVICE.type
    assert host.host_copy(tensor).tolist() == [0, 1, 2, 3, 4, 5]
    host.move_in([tensor])
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]


def test_changes_on_the_device_are_kept() -> None:
    tensor = numbers()
    host = HostMemory()
    host.move_out([tensor])
    with host.on_device([tensor]):
        tensor.mul_(2)
    assert host.host_copy(tensor).tolist() == [0, 2, 4, 6, 8, 10]
    with host.on_device([tensor], changed=False):
        tensor.zero_()
    assert host.host_copy(tensor).tolist() == [0, 2, 4, 6, 8, 10]


def test_changes_on_the_host_reach_the_device() -> None:
    tensor = numbers()
    host = HostMemory()
    host.move_out([tensor])
    host.host_copy(tensor).fill_(7)
    host.move_in([tensor])
    assert tensor.tolist() == [7] * 6


def test_views_of_one_storage_move_together_and_keep_their_places() -> None:
    whole = numbers()
    first, second = whole.split([2, 4])
    host = HostMemory()
    host.move_out([first, second])
    assert host.host_copy(second.view(2, 2)).tolist() == [[2, 3], [4, 5]]
    host.move_in([second])
    assert (first.tolist(), second.tolist()) == ([0, 1], [2, 3, 4, 5])
    assert first.data_ptr() == whole.data_ptr()


def test_what_was_never_moved_out_is_left_alone() -> None:
    tensor = numbers()
    host = HostMemory()
    host.move_in([tensor])
    assert host.host_copy(tensor) is tensor
    host.move_out([tensor])
    host.move_out([tensor])  # a second time changes nothing
    host.move_in([tensor])
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
