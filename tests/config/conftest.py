from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def recipe(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, "utf-8")
        return path

    return write
