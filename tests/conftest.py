"""Fixtures of the whole suite.

Imports no torch: tests of explain, viewer and config start without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

# Read by libraries when they are first imported, so they are set here, before any test module.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch: the suite runs one worker per core
os.environ.setdefault("RAY_worker_register_timeout_seconds", "240")  # importing is slow under load

from telescope.config import Config
from tests.refusals import PROMPTS, Job, write_jsonl
from tests.tiny import tiny_config, write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model_copy(tmp_path: Path, tiny_model: Path) -> Path:
    """A copy of the tiny model's folder that the test may damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def make_config(tmp_path: Path, tiny_model: Path) -> Callable[..., Config]:
    """make_config(("steps", "3"), …): a tiny run in the test's own folder."""
    return lambda *overrides: tiny_config(tmp_path, tiny_model, *overrides)


@pytest.fixture
def job(tmp_path: Path, tiny_model: Path) -> Job:
    """job(("steps", "3"), …): two steps on a file of four prompts without evaluation, so that a
    reward call is a step.
    """
    data = write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": text} for text in PROMPTS])
    base = [
        ("data.files", str(data)),
        ("data.max_prompt_tokens", "16"),
        ("rollout.batch_size", "4"),
    ]
    return lambda *overrides: tiny_config(tmp_path, tiny_model, *base, *overrides)
