"""Fixtures of the whole suite.

Imports no torch: tests of explain, viewer and config start without it.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

# Read by libraries when they are first imported, so they are set here, before any test module.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch: the suite runs one worker per core
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="telescope-state-")  # not the user's own
os.environ.setdefault("RAY_worker_register_timeout_seconds", "240")  # importing is slow under load
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"  # without a GPU, Python runs the kernels

from telescope.config import Config
from tests.refusals import PROMPTS, Job, write_jsonl
from tests.tiny import tiny_config, write_tiny_model

LAYERS = {
    "slow": (
        "audit/test_exact.py",
        "audit/test_run.py",
        "commands/test_a_run.py",
        "commands/test_ask.py",
        "commands/test_explain.py",
        "data/test_bad_data.py",
        "docs/test_notebook.py",
        "doctor/test_prove.py",
        "examples/*",
        "explain/ask/test_retry.py",
        "explain/test_tex.py",
        "ledger/test_ledger.py",
        "models/fast/*",
        "models/test_bad_model_folders.py",
        "models/test_families.py",
        "models/test_lora*.py",
        "models/test_quantize.py",
        "models/test_sequence.py",
        "models/test_sharded.py",
        "models/test_weight_files.py",
        "run/test_fixed_prompts.py",
        "roles/test_bad_rewards.py",
        "roles/test_calling.py",
        "roles/test_first_forward.py",
        "roles/test_head_init.py",
        "roles/test_informed.py",
        "roles/test_hl_gauss.py",
        "roles/test_optimizer.py",
        "roles/test_reference.py",
        "roles/test_remote.py",
        "roles/test_settings_reach_the_loss.py",
        "roles/test_shaping.py",
        "roles/test_update.py",
        "scale/test_shared_rows.py",
        "rewards/*",
        "rollout/test_episodes.py",
        "rollout/test_paid_turns.py",
        "rollout/test_refill.py",
        "rollout/test_tool_runs.py",
        "rollout/test_vllm.py",
        "run/*",
        "test_every_algorithm.py",
        "test_pitfalls.py",
        "test_recipes.py",
        "test_trainer.py",
        "tools/*",
        "viewer/test_report.py",
    ),
    "ray": (
        "scale/test_cluster.py",
        "scale/test_pitfalls.py",
        "scale/test_ray*.py",
        "scale/test_samplers.py",
    ),
    "browser": (
        "viewer/test_ask_box.py",
        "viewer/test_compare.py",
        "viewer/test_dashboard.py",
        "viewer/test_newcomer.py",
        "viewer/test_reader.py",
        "viewer/test_report_page.py",
        "viewer/test_runs_page.py",
        "viewer/test_samples.py",
        "viewer/test_token.py",
        "viewer/test_tour.py",
        "viewer/test_whatif_page.py",
    ),
}
"""Files whose tests all have this marker. Where the marker is deselected, they are not imported."""


@functools.cache
def layer_of(path: Path) -> str | None:
    """The layer that a test file belongs to; None: the fast one."""
    name = path.relative_to(Path(__file__).parent).as_posix()
    for layer, patterns in LAYERS.items():
        if any(fnmatch(name, pattern) for pattern in patterns):
            return layer
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.is_dir() or not collection_path.name.startswith("test_"):
        return None
    layer = layer_of(collection_path)
    return True if layer and f"not {layer}" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        layer = layer_of(item.path) if item.path.is_relative_to(here) else "slow"
        if layer:
            item.add_marker(layer)
        if layer == "browser":  # a busy machine may be late; a real fault fails three times
            item.add_marker(pytest.mark.flaky(reruns=2))


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
