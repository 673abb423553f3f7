"""Runs that are compared bit for bit.

Their reward draws from every global generator, and can stop the process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from telescope.config import Config
from telescope.run import checkpoint
from tests.fakes import read_shards

STEPS = 5
MakeConfig = Callable[..., Config]
StopAt = Callable[[str], None]
Train = Callable[[Config, str], str]

# A file called `stop` next to the reward says when the process gets a signal:
#   "SIGTERM train 2"  at the second call on training prompts
#   "SIGTERM eval 6"   at the sixth call on held-out prompts
#   "save train 4"     killed while the checkpoint after that step is half written
REWARD = """
import os, random, signal
from pathlib import Path

import numpy
import torch

for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(7)
calls = {"train": 0, "eval": 0}
stop = Path(__file__).with_name("stop")


def noisy(prompts, completions, split):
    calls[split[0]] += 1
    what, kind, number = stop.read_text().split() if stop.exists() else ("", "", "0")
    if kind == split[0] and calls[kind] == int(number):
        if what == "save":
            torch.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        else:
            os.kill(os.getpid(), getattr(signal, what))
    return [len(text) / 10 + noise() for text in completions]


def noise():
    return random.random() + numpy.random.random() + float(torch.rand(()))
"""


def rows(config: Config) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, without timings."""
    lines = (config.run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    return [without_timings(json.loads(line)) for line in lines]


def without_timings(row: dict[str, Any]) -> dict[str, Any]:
    measured = ("timing/", "perf/")
    kept = {key: value for key, value in row.items() if not key.startswith(measured)}
    kept.pop("crc32", None)  # of the whole line
    return kept


def last_checkpoint(config: Config) -> Path:
    return checkpoint.list_checkpoints(config.run_dir / "checkpoints")[-1]


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal to the last bit, including the tensors inside."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def assert_same_run(one: Config, other: Config) -> None:
    """Compare metrics, weights, optimizer moments and state.pt."""
    assert rows(one) == rows(other)
    paths = [last_checkpoint(config) for config in (one, other)]
    assert paths[0].name == paths[1].name
    for role in ("actor", "critic"):
        shards = [read_shards(path, role) for path in paths]
        assert same(*shards), f"weights or moments of the {role} differ"
    states = [torch.load(path / "state.pt", weights_only=True) for path in paths]
    assert states[0].keys() == states[1].keys()
    for key in states[0]:
        assert same(states[0][key], states[1][key]), f"state.pt: `{key}` differs"


def constant(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)
