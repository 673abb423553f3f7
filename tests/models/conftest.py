from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from telescope.models.parallel import ProcessGroup
from tests.models.test_families import write_family


@pytest.fixture(scope="module", params=["llama, tied", "qwen2", "qwen3 moe", "gemma3", "gpt2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(request.param, tmp_path_factory.mktemp("family") / "model")


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[ProcessGroup]:
    """A group of one process. Sharding runs the same code; Ray's tests have several processes."""
    init_method = f"file://{tmp_path / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=init_method, rank=0, world_size=1)
    yield ProcessGroup(torch.device("cpu"))
    dist.destroy_process_group()
