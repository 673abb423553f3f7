"""Runs that are compared bit for bit: a reward that draws from every generator and can stop the process."""

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

# Draws from every global generator, in evaluations too. A file called `stop` next to it says "SIGNAL train 2" (at the second
# call on training prompts), "SIGNAL eval 6", or "save train 4" (killed while the checkpoint after that step is half written).
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
    return [len(text) / 10 + random.random() + numpy.random.random() + float(torch.rand(())) for text in completions]
"""


def rows(config: Config) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock measured."""
    lines = (config.run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("timing/", "perf/"))}
        for line in lines
    ]


def last_checkpoint(config: Config) -> Path:
    return checkpoint.list_checkpoints(config.run_dir / "checkpoints")[-1]


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, tensors inside included."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def assert_same_run(one: Config, other: Config) -> None:
    assert rows(one) == rows(other)
    assert last_checkpoint(one).name == last_checkpoint(other).name
    for role in ("actor", "critic"):
        states = [read_shards(last_checkpoint(config), role) for config in (one, other)]
        assert same(*states), f"weights or moments of the {role} differ"
    states = [
        torch.load(last_checkpoint(config) / "state.pt", weights_only=True)
        for config in (one, other)
    ]
    for key in states[0]:
        assert same(states[0][key], states[1][key]), f"state.pt: `{key}` differs"


def constant(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)
