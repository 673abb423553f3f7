from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # the GPU's kernels, run by Python

os.environ.setdefault(
    "RAY_worker_register_timeout_seconds", "240"
)  # on a busy machine a worker takes long to import

from telescope.config import Config
from tests.fakes import tiny_config, write_tiny_model

torch.set_num_threads(1)  # the suite runs on one worker per core


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def make_config(tmp_path: Path, tiny_model: Path) -> Callable[..., Config]:
    """make_config(("steps", "3"), …): a tiny run in the test's own folder."""
    return lambda *overrides: tiny_config(tmp_path, tiny_model, *overrides)
