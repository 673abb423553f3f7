"""Devices and trackers that this machine does not have are refused by name."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.refusals import Job, refusal


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_cuda_on_a_machine_without_it_is_refused(job: Job, name: str):
    message = refusal(job(("device", name)))
    assert f"device = {name!r}" in message
    assert "use auto or cpu" in message


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "meta", "vulkan"])
def test_an_unknown_device_is_refused(job: Job, name: str):
    message = refusal(job(("device", name)))
    assert f"device = {name!r}" in message
    assert "cpu" in message


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_named_with_the_command_to_install_it(
    job: Job, name: str, monkeypatch: pytest.MonkeyPatch
):
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)  # as if not installed
    told = f"log.trackers names {name}, which is not installed: pip install -e '.[{name}]'"
    assert refusal(job(("log.trackers", name))) == told
