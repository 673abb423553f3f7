"""What the ledger costs: seconds of recording per step, beside the step itself.

    python benchmarks/ledger.py

Two jobs: the built-in one, and 256 responses of 512 tokens with a small random Llama (where the
step is long and the ledger large). Recording is timed where it happens (the losses' notes and the
file); runs with and without it would drown 1 % in noise.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from telescope.config import load_config
from telescope.ledger.writer import Ledger
from telescope.trainer import Trainer


def timed(overrides: list[tuple[str, str]], steps: int, samples: str) -> tuple[float, float, int]:
    """Median seconds of recording and of the whole step, and the bytes of the last file."""
    spent = [0.0]
    write, note = Ledger.write, Ledger.note

    def clocked(function):
        def call(*args, **kwargs):
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[-1] += time.perf_counter() - began

        return call

    def timed_write(self, *args, **kwargs):
        path = clocked(write)(self, *args, **kwargs)
        spent.append(0.0)
        return path

    Ledger.write, Ledger.note = timed_write, lambda self, *args: clocked(note(self, *args))
    try:
        with tempfile.TemporaryDirectory() as folder:
            base = [
                ("dir", folder),
                ("steps", str(steps)),
                ("ledger.samples", samples),
                ("checkpoint.every", "0"),
                ("log.every", "1000000"),
            ]
            recipe = (
                None
                if any(key == "model.path" for key, _ in overrides)
                else Path("telescope/data/arithmetic.toml")
            )
            trainer = Trainer(
                load_config(recipe, [*base, *overrides]),
                reward=lambda response_ids: [len(r) / 8 for r in response_ids],
            )
            trainer.held_out = None
            if recipe is None:
                trainer.roles.actor.sampler.stop = torch.tensor(
                    [-1]
                )  # every response takes all its tokens
            trainer.fit()
            whole = statistics.median(
                row["timing/step"] for row in trainer.history() if "timing/step" in row
            )
            files = list((trainer.config.run_dir / "ledger").glob("*.parquet"))
            return statistics.median(spent[1:-1] or spent[:1]), whole, files[-1].stat().st_size
    finally:
        Ledger.write, Ledger.note = write, note


def long_model(folder: Path) -> str:
    from tests.fakes import write_tiny_model

    return str(write_tiny_model(folder, hidden=64))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as models:
        long = [
            ("model.path", long_model(Path(models) / "long")),
            ("rollout.batch_size", "256"),
            ("rollout.max_response_tokens", "512"),
            ("rollout.top_k", "20"),
            ("actor.lr", "1e-9"),
        ]
        for title, overrides, steps in (
            ("built-in job", [], args.steps),
            ("256 x 512 tokens", long, 2),
        ):
            for samples in ("32", "all"):
                cost, step, size = timed(overrides, steps, samples)
                share = f"{cost * 1e3:7.1f} ms of {step * 1e3:8.1f} ms, {cost / step:6.2%}"
                print(f"{title:18} samples {samples:4} {share}, {size:9,d} bytes", flush=True)
