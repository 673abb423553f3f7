from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of four CPUs, started here."""
    ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Path:
    return tiny_model
