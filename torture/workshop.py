"""The run that is tortured, an undisturbed one, and their comparison bit for bit."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.run.compared import REWARD, without_timings
from tests.tiny import tiny_config, write_tiny_model
from torture.processes import Command, Ended, in_child
from torture.table import Row

STEPS = 5
SETTINGS = {
    "steps": str(STEPS),
    "seed": "3",
    "data.max_prompt_tokens": "16",
    "rollout.batch_size": "4",
    "rollout.n": "2",
    "eval.samples": "4",
    "eval.every": "3",
    "checkpoint.every": "2",
    "credit.kl_coef": "0.1",
    "credit.kl_target": "0.01",
    "reward.normalise": "true",
    "actor.epochs": "2",
    "actor.minibatches": "2",
    "actor.schedule": "linear",
    "ledger.prompts": "1",
    "ledger.samples": "2",
    "warm_start.batch_size": "2",
    "warm_start.lr": "1e-2",
}
"""A run in which everything that has a state is switched on."""

FAULTY = """
import gc, sys, threading, time

well_behaved, made = noisy, []


def noisy(prompts, completions, split):
    result = well_behaved(prompts, completions, split)
    made.append(1)
    if len(made) != 4 or "TORTURE" not in os.environ:
        return result
    names = {**globals(), "prompts": prompts, "completions": completions, "result": result}
    exec(os.environ["TORTURE"], names)
    return names["result"]
"""
"""After the ordinary reward: at its fourth call it does what the environment says."""


class Workshop:
    """A folder with a tiny model, a recipe, and the run that nobody disturbed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = Random(seed)
        self.until = float("inf")
        """When no further fault is to begin, on the clock of time.monotonic."""
        self.model = folder / "model"
        in_child(lambda: write_tiny_model(self.model) and None)
        for split, count in (("train", 5), ("eval", 3)):
            claims = ["4" * (i % 3 + 1) for i in range(count)]
            rows = [
                {"prompt": f"请问{i}+{i}={claim}？", "split": split}
                for i, claim in enumerate(claims)
            ]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{split}.jsonl").write_text(lines, "utf-8")
        answers = "".join(json.dumps(row | {"completion": "44"}) + "\n" for row in rows)
        (folder / "answers.jsonl").write_text(answers, "utf-8")
        (folder / "reward.py").write_text(REWARD + FAULTY, "utf-8")
        self.undisturbed = self.new_run("undisturbed")
        modules, self.seconds = in_child(lambda: _first_run(self.undisturbed))
        """What a run takes when nobody disturbs it."""
        _import(modules)
        self.expected = in_child(lambda: contents(self.undisturbed))

    def goes_on(self, row: Row, count: int) -> bool:
        """Whether there are faults left, and time for them."""
        print(f"\r{row.kind}: {row.faults} of {count}", end="", file=sys.stderr, flush=True)
        return row.faults < count and time.monotonic() < self.until

    def new_run(self, name: str, **settings: str) -> Path:
        """The folder of a run that has not started. Its recipe lies beside it."""
        from telescope.config import to_toml

        home = self.folder / name
        if home.exists():
            shutil.rmtree(home)
        home.mkdir()
        files = {
            "data.files": str(self.folder / "train.jsonl"),
            "data.eval_files": str(self.folder / "eval.jsonl"),
            "warm_start.files": str(self.folder / "answers.jsonl"),
            "reward.functions": f"{self.folder / 'reward.py'}:noisy",
        }
        chosen = SETTINGS | files | settings
        if chosen.get("backend") == "ray":  # a warm start is for one process
            chosen = {key: chosen[key] for key in chosen if not key.startswith("warm_start.")}
        config = tiny_config(home, self.model, *chosen.items())
        (home / "recipe.toml").write_text(to_toml(config), "utf-8")
        return home / "run"

    def start(self, run: Path, *more: str, before: Callable[[], None] = lambda: None) -> Command:
        """Starts `telescope train --resume`."""
        arguments = ["train", str(run.parent / "recipe.toml"), "--resume", *more]
        return Command(arguments, run.parent / "said.txt", before)

    def train(self, run: Path, *more: str, before: Callable[[], None] = lambda: None) -> Ended:
        return self.start(run, *more, before=before).wait()

    def resume(
        self, run: Path, row: Row, what: str, tidy: Callable[[Path], None] = lambda run: None
    ) -> None:
        """Trains to the end, and compares the run with the undisturbed one, after `tidy`."""
        ended = self.train(run)
        row.look(ended, what)
        if ended.code:
            row.not_ended(ended, what)
        else:
            tidy(run)
            row.compare(self.differences(run), what)

    def command(self, run: Path, *arguments: str) -> Ended:
        """Runs another command to its end."""
        return Command(arguments, run.parent / "said.txt").wait()

    def differences(self, run: Path) -> list[str]:
        """Names of everything that differs from the undisturbed run."""
        return differing(in_child(lambda: contents(run)), self.expected)


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names whose content differs, or that only one of the two has."""
    names = sorted(found.keys() | expected.keys())
    return [name for name in names if found.get(name) != expected.get(name)]


def contents(run: Path) -> dict[str, Any]:
    """What a run has computed, by name: rows of metrics, weights, moments, state, ledgers."""
    from telescope.ledger import reader

    found: dict[str, Any] = {}
    rows = (run / "metrics.jsonl").read_text("utf-8", "replace")
    for number, line in enumerate(rows.splitlines()):
        row = without_timings(json.loads(line))
        found[f"metrics row {number}"] = repr(row)
    if (run / "warm_start.jsonl").exists():
        found["warm start"] = (run / "warm_start.jsonl").read_text("utf-8", "replace")
    for kind in ("step", "eval", "completions"):
        for step in reader.steps(run, kind):
            found[f"ledger {kind} {step}"] = _ledger(run, step, kind)
    for path in sorted((run / "checkpoints").iterdir()):
        found |= _checkpoint(path) if path.name.startswith("step_") else {path.name: "left over"}
    for path in run.iterdir():
        if path.name.startswith(".") and path.name != ".lock":
            found[path.name] = "left over"
    return found


def _ledger(run: Path, step: int, kind: Any) -> str:
    from telescope.errors import TelescopeError
    from telescope.ledger import reader

    try:
        return _hash(repr(reader.read(run, step, kind=kind).to_pydict()).encode())
    except TelescopeError as error:
        return str(error)


def _checkpoint(path: Path) -> dict[str, str]:
    import torch

    from tests.fakes import read_shards

    found = {}
    if not (path / "checkpoint.json").is_file():
        return {path.name: "a part of a checkpoint"}
    for role in ("actor", "critic"):
        for name, tensor in read_shards(path, role).items():
            found[f"{path.name} {role} {name}"] = _hash(tensor.numpy().tobytes())
    state = torch.load(path / "state.pt", weights_only=True)
    found[f"{path.name} state"] = _hash(repr(_plain(state)).encode())
    return found


def _plain(value: Any) -> Any:
    """The value with lists in place of tensors, whose text is shortened."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def copy(run: Path, home: Path) -> Path:
    """A copy of a run in another folder, with its recipe."""
    if home.exists():
        shutil.rmtree(home)
    home.mkdir()
    recipe = (run.parent / "recipe.toml").read_text("utf-8")
    recipe = recipe.replace(str(run.parent), str(home))
    (home / "recipe.toml").write_text(recipe, "utf-8")
    shutil.copytree(run, home / run.name, symlinks=True)
    return home / run.name


def setup() -> None:
    """One thread for each run: they share the cores, and the sums are always in one order."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def _first_run(run: Path) -> tuple[list[str], float]:
    """Trains. Returns the names of all modules that this has imported, and the seconds."""
    from telescope.commands import main

    began = time.monotonic()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        main(["train", str(run.parent / "recipe.toml")])
    return list(sys.modules), time.monotonic() - began


def _import(names: list[str]) -> None:
    """Imports modules here, so that no fork has to."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
