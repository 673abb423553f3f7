from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.test_families import write_family


@pytest.fixture(scope="module", params=["llama, tied", "qwen2", "qwen3 moe", "gemma3", "gpt2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(request.param, tmp_path_factory.mktemp("family") / "model")
