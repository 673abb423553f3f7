"""What recording costs a trainer: watched and unwatched steps of one run, one after the other.

    python -m benchmarks.watch record                                   # a loop of one's own
    PYTHONPATH=.peers/trl-1.12 python -m benchmarks.watch ppo grpo      # TRL (make test-peers)

Every second step is watched, and waits until its files are written: that is the most that recording
can cost. Times are CPU seconds of the whole process, all threads included, so that other programs
on the machine do not count. Memory and disk are bounded: `tests/peers/test_never_raises.py`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import telescope
from telescope.peers import Recorder
from tests.tiny import write_tiny_model

STEPS = 9
ROWS = 32
TOKENS = 48
NEVER = 10**9


class Clock:
    """CPU seconds of the watched and of the unwatched steps."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self.wall: list[float] = []
        self.inside = 0.0
        self.steps = 0
        self._time_record()
        self._begin()

    def tick(self) -> None:
        """A step has ended."""
        if self.watched:
            self.recorder.close()
        if self.steps:  # the first one warms up
            self.seconds[self.watched].append(time.process_time() - self.since)
            self.wall.append(time.perf_counter() - self.wall_since)
        self.steps += 1
        self._begin()

    def _begin(self) -> None:
        self.watched = self.steps % 2 == 0
        self.recorder.every = 1 if self.watched else NEVER
        self.since = time.process_time()
        self.wall_since = time.perf_counter()

    def _time_record(self) -> None:
        """Adds up the wall seconds for which the trainer itself is held up."""
        record = self.recorder.record

        def timed(*args: Any, **kwargs: Any) -> None:
            before = time.perf_counter()
            record(*args, **kwargs)
            if self.steps and self.watched:
                self.inside += time.perf_counter() - before

        self.recorder.record = timed  # type: ignore[method-assign]

    def report(self, name: str) -> None:
        watched = statistics.median(self.seconds[True])
        plain = statistics.median(self.seconds[False])
        held = 1e3 * self.inside / len(self.seconds[True])
        print(
            f"{name}: {plain:.2f} CPU s per step unwatched, {watched:.2f} watched: "
            f"{100 * (watched / plain - 1):+.1f} %; the trainer is held up for {held:.1f} ms of "
            f"{statistics.median(self.wall):.2f} s ({ROWS} × {TOKENS} tokens, "
            f"{len(self.seconds[True])} + {len(self.seconds[False])} steps)"
        )


def callback(clock: Clock) -> Any:
    from transformers import TrainerCallback

    class Tick(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    return Tick()


def common(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": ROWS,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "gradient_checkpointing": False,
    }


def tokenizer_of(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, padding_side="left")


def grpo(folder: Path, model: Path) -> None:
    """GRPO of TRL."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        num_generations=4,
        max_completion_length=TOKENS,
        max_steps=STEPS,
        beta=0.04,
        **common(folder),
    )
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=[lambda completions, **_: [float(len(text) % 3) for text in completions]],
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "请问1+1=2？"}] * (ROWS * STEPS)),
        processing_class=tokenizer_of(model),
    )
    clock = Clock(telescope.watch(trainer, folder / "run"))
    trainer.add_callback(callback(clock))
    trainer.train()
    clock.report("TRL GRPO")


def ppo(folder: Path, model: Path) -> None:
    """PPO of TRL 1.12."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    tokenizer = tokenizer_of(model)
    settings = PPOConfig(
        num_ppo_epochs=1,
        response_length=TOKENS,
        total_episodes=ROWS * STEPS,
        num_sample_generations=0,
        **common(folder),
    )
    rows = Dataset.from_list(
        [{"input_ids": tokenizer("请问1+1=2？")["input_ids"]}] * (ROWS * STEPS)
    )
    scorer = AutoModelForSequenceClassification.from_pretrained
    trainer = PPOTrainer(
        args=settings,
        processing_class=tokenizer,
        model=AutoModelForCausalLM.from_pretrained(model),
        ref_model=AutoModelForCausalLM.from_pretrained(model),
        reward_model=scorer(model, num_labels=1),
        value_model=scorer(model, num_labels=1),
        train_dataset=rows,
        eval_dataset=rows,
    )
    clock = Clock(telescope.watch(trainer, folder / "run"))
    trainer.add_callback(callback(clock))
    trainer.train()
    clock.report("TRL PPO")


def record(folder: Path, model: Path) -> None:
    """A forward and a backward of the same model, and `Recorder.record` with ten columns."""
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model)
    names = ("values", "token_level_rewards", "old_log_probs", "ref_log_prob", "returns")
    clock = Clock(Recorder(folder / "run", tokenizer=tokenizer_of(model)))
    for step in range(STEPS):
        ids = torch.randint(5, 15, (ROWS, TOKENS))
        for _ in range(3):
            policy(ids, labels=ids).loss.backward()
        columns = {name: torch.randn(ROWS, TOKENS) for name in (*names, "advantages", "whitened")}
        mask = torch.ones(ROWS, TOKENS)
        clock.recorder.record(step, responses=ids, mask=mask, log_probs=-mask, **columns)
        clock.tick()
    clock.report("telescope.record")


JOBS: dict[str, Callable[[Path, Path], None]] = {"record": record, "grpo": grpo, "ppo": ppo}


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["record"]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model").mkdir()
            model = write_tiny_model(Path(folder) / "model", hidden=256, layers=4)
            JOBS[name](Path(folder), model)


if __name__ == "__main__":
    main()
