"""Train, stop, fail, resume, change a setting, export: in any order, the same weights in the end.

A state machine of hypothesis draws the order.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from safetensors.torch import load_file

from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.run.export import export_run
from telescope.run.lifecycle import Interrupted
from telescope.trainer import Trainer
from tests.fakes import read_shards
from tests.run.compared import last_checkpoint, rows, same
from tests.tiny import tiny_config

STEPS = 5
LRS = ("1e-3", "2e-3")


def well(completions: list[str]) -> list[float]:
    return [len(text) / 10 for text in completions]


class AnyOrder(RuleBasedStateMachine):
    """One run. `lrs` has the learning rate of every step that is done."""

    model: ClassVar[Path]
    straight: ClassVar[dict[tuple[str, ...], Any]] = {}
    """Learning rates -> what a run computes with them that is never stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.lrs: list[str] = []
        self.lr = LRS[0]

    def config(self, lr: str, folder: Path | None = None) -> Config:
        more = (("steps", str(STEPS)), ("actor.lr", lr), ("rollout.batch_size", "4"))
        quick = (("eval.samples", "2"), ("ledger.samples", "off"), ("checkpoint.every", "2"))
        return tiny_config(folder or self.home, self.model, *more, *quick)

    def trainer(self, reward: Any = well) -> Trainer:
        return Trainer(self.config(self.lr), reward={"score": reward}, resume=True)

    @precondition(lambda self: len(self.lrs) < STEPS)
    @rule(count=st.integers(1, 2))
    def train(self, count: int) -> None:
        until = min(len(self.lrs) + count, STEPS)
        self.trainer().fit(until)
        self.lrs += [self.lr] * (until - len(self.lrs))

    @precondition(lambda self: len(self.lrs) < STEPS - 1)
    @rule(number=st.sampled_from([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
    def stop(self, number: signal.Signals) -> None:
        def stopping(completions: list[str]) -> list[float]:
            if not seen and self.is_training(trainer):
                seen.append(1)
                os.kill(os.getpid(), number)
            return well(completions)

        seen: list[int] = []
        trainer = self.trainer(stopping)
        with pytest.raises(Interrupted):
            trainer.fit()
        self.lrs.append(self.lr)

    @staticmethod
    def is_training(trainer: Trainer) -> bool:
        """Evaluation calls the reward too, before the first step."""
        return trainer.step > 0 or (trainer.config.run_dir / "metrics.jsonl").stat().st_size > 0

    @precondition(lambda self: 0 < len(self.lrs) < STEPS)
    @rule()
    def fail(self) -> None:
        def failing(completions: list[str]) -> list[float]:
            raise ValueError("no")

        with pytest.raises(TelescopeError):
            self.trainer(failing).fit()

    @rule(lr=st.sampled_from(LRS))
    def change(self, lr: str) -> None:
        self.lr = lr

    @precondition(lambda self: self.lrs)
    @rule()
    def export(self) -> None:
        folder = self.home / "exported"
        assert export_run(self.config(self.lr).run_dir, folder) == len(self.lrs)
        weights = load_file(folder / "model.safetensors")
        trained = read_shards(last_checkpoint(self.config(self.lr)), "actor")
        name = next(iter(weights))
        assert torch.equal(weights[name], trained[f"weight/{name}"])
        shutil.rmtree(folder)

    def teardown(self) -> None:
        if self.lrs:
            config = self.config(self.lr)
            assert last_checkpoint(config).name == f"step_{len(self.lrs):06d}"
            assert same(computed(config), self.never_stopped(tuple(self.lrs)))
        shutil.rmtree(self.home)

    def never_stopped(self, lrs: tuple[str, ...]) -> Any:
        """The same steps, stopped only where the learning rate changes."""
        if lrs not in self.straight:
            folder = Path(tempfile.mkdtemp())
            for step, lr in enumerate(lrs, 1):
                if step == len(lrs) or lrs[step] != lr:
                    config = self.config(lr, folder)
                    Trainer(config, reward={"score": well}, resume=True).fit(step)
            self.straight[lrs] = computed(config)
            shutil.rmtree(folder)
        return self.straight[lrs]


def computed(config: Config) -> Any:
    """Rows of the training steps, weights and moments."""
    trained = [row for row in rows(config) if "reward/score_mean" in row]
    return trained, [read_shards(last_checkpoint(config), role) for role in ("actor", "critic")]


def test_in_any_order_the_weights_are_those_of_a_run_that_was_never_stopped(tiny_model: Path):
    AnyOrder.model = tiny_model
    few = settings(
        max_examples=1,
        stateful_step_count=6,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # a failure is reported as it was found
    )
    run_state_machine_as_test(AnyOrder, settings=few)
