"""GRPO of TRL on GSM8K, beside a run of recipes/gsm8k.toml: the same model, prompts and reward.

    python benchmarks/gsm8k_trl.py --model MODEL --seconds 720 --out runs/gsm8k-trl [--vllm]

Reads the parquet files that benchmarks/gsm8k.py leaves in runs/gsm8k/data. Saves the policy
--marks times, evenly spread over the seconds of training; those of saving do not count. `telescope
eval` then measures each saved policy with the recipe's own data and scorer, so that both sides are
judged by the same code.
Writes curve.jsonl step by step, and summary.json at the end: time to the first update, seconds per
step, accuracy against seconds of training, peak memory, versions and settings. Needs trl and
datasets; --vllm also vLLM.

What is equal: 512 responses per step in four minibatches, at most 400 tokens, temperature 1, no KL,
clip 0.2 and 0.28, 0.9 for the right answer and 0.1 for the form, linear decay. What is TRL's own:
groups of --generations responses instead of a critic, its loss (dapo) and advantages, learning rate
1e-6 unless --lr says otherwise, bfloat16 autocast over float32 weights.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()
ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "gsm8k.toml"
DATA = ROOT / "runs" / "gsm8k" / "data"
PACKAGES = ("torch", "transformers", "trl", "accelerate", "vllm")
RESPONSES = 512
MINIBATCHES = 4
FOREVER = 10**6
"""Steps: the clock ends the run."""


class Enough(Exception):  # noqa: N818 -- not an error
    """The seconds are spent."""


class Clock:
    """Seconds of training, without those of saving, and what each step took.

    `curve` gets every step at once: a run that is cut off loses none.
    """

    def __init__(self, limit: float, marks: int, save: Callable[[str], None], curve: Path) -> None:
        self.limit = limit
        self.curve = curve
        curve.unlink(missing_ok=True)
        self.marks = [limit * (number + 1) / marks for number in range(marks)]
        self.save = save
        self.away = 0.0
        self.rows: list[dict[str, Any]] = []
        self.since = 0.0
        self.first_update = 0.0

    def begin(self) -> None:
        self.since = time.perf_counter()

    def tick(self, logs: dict[str, Any]) -> None:
        """A training step (all its minibatches) has ended."""
        self.first_update = self.first_update or time.perf_counter() - STARTED
        seconds = time.perf_counter() - self.since - self.away
        row = {"step": len(self.rows) + 1, "seconds": round(seconds, 3), **logs}
        self.rows.append(row)
        print(f"TRL  step {row['step']}  {seconds:.1f} s of {self.limit:g}", file=sys.stderr)
        if self.marks and seconds >= self.marks[0]:
            self.marks = [mark for mark in self.marks if mark > seconds]
            began = time.perf_counter()
            row["saved"] = f"step_{row['step']:06d}"
            self.save(row["saved"])
            self.away += time.perf_counter() - began
        with self.curve.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if seconds >= self.limit:
            raise Enough


def rewards() -> list[Callable[..., list[float]]]:
    """The recipe's two rewards. With chat prompts TRL passes completions as messages."""
    sys.path.insert(0, str(RECIPE.parent))
    from gsm8k import form, gsm8k

    def of_texts(function: Callable[..., list[float]]) -> Callable[..., list[float]]:
        def reward(completions: list[Any], reward_model: list[Any], **_: Any) -> list[float]:
            texts = [messages[0]["content"] for messages in completions]
            truth = [row["ground_truth"] for row in reward_model]
            return function(completions=texts, ground_truth=truth)

        reward.__name__ = function.__name__
        return reward

    return [of_texts(gsm8k), of_texts(form)]


def settings_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """GRPOConfig's arguments."""
    minibatch = chosen.responses // MINIBATCHES
    micro = min(chosen.micro, minibatch)
    settings = {
        "learning_rate": chosen.lr,
        "lr_scheduler_type": "constant",  # its decay counts steps, and seconds end this run
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": minibatch // micro,
        "steps_per_generation": chosen.responses // micro,
        "num_generations": chosen.generations,
        "max_completion_length": chosen.tokens,
        "temperature": 1.0,
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "reward_weights": [0.9, 0.1],
        "max_steps": FOREVER,
        "gradient_checkpointing": chosen.checkpointing,
        "seed": chosen.seed,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": not chosen.cpu,
        "use_cpu": chosen.cpu,
    }
    if chosen.vllm:
        settings |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_max_model_length": 768 + chosen.tokens,
            "vllm_gpu_memory_utilization": 0.3,
        }
    for pair in chosen.set:
        key, _, value = pair.partition("=")
        settings[key] = json.loads(value)
    return settings


def train(chosen: argparse.Namespace) -> dict[str, Any]:
    """Trains until the seconds are spent; what summary.json holds, without accuracies."""
    import torch
    from datasets import load_dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(chosen.model, padding_side="left")
    trainer: Any = None

    def save(name: str) -> None:
        folder = chosen.out / name
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.save_pretrained(folder, state_dict=_bfloat16(model))
        tokenizer.save_pretrained(folder)

    clock = Clock(chosen.seconds, chosen.marks, save, chosen.out / "curve.jsonl")

    class Tick(TrainerCallback):
        """Optimizer steps come in fours: one training step."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.begin()

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            left = 1 - (time.perf_counter() - clock.since - clock.away) / chosen.seconds
            for group in trainer.optimizer.param_groups:
                group["lr"] = chosen.lr * max(left, 0.0)
            if state.global_step % MINIBATCHES == 0:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                measured = trainer._metrics["train"]
                names = {"reward": "reward", "completions/mean_length": "tokens"}
                clock.tick({ours: measured[theirs][-1] for theirs, ours in names.items()})

    rows = load_dataset("parquet", data_files=str(chosen.train), split="train")
    settings = settings_of(chosen)
    dtype = "float32" if chosen.cpu or not chosen.bfloat16 else "bfloat16"
    trainer = GRPOTrainer(
        model=str(chosen.model),
        reward_funcs=rewards(),
        args=GRPOConfig(output_dir=str(chosen.out), model_init_kwargs={"dtype": dtype}, **settings),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[Tick()],
    )
    with contextlib.suppress(Enough):
        trainer.train()
    steps = [row["seconds"] for row in clock.rows]
    took = [after - before for before, after in zip([0.0, *steps], steps, strict=False)]
    on_gpu = torch.cuda.is_available()
    return {
        "side": "TRL GRPO",
        "first_update_seconds": round(clock.first_update, 1),
        "step_seconds": round(statistics.median(took[1:] or took), 3),
        "steps": len(clock.rows),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if on_gpu else None,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "versions": {name: version(name) for name in PACKAGES},
        "settings": settings | {"dtype": dtype},
        "curve": clock.rows,
    }


def _bfloat16(model: Any) -> dict[str, Any]:
    import torch

    state = model.state_dict()
    return {name: value.to(torch.bfloat16).contiguous() for name, value in state.items()}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def measure(chosen: argparse.Namespace, summary: dict[str, Any]) -> None:
    """Adds the accuracy of every saved policy to its row of the curve."""
    folders = {row["saved"]: row for row in summary["curve"] if "saved" in row}
    command = [sys.executable, "-m", "telescope", "eval", "--json", "--recipe", str(RECIPE)]
    command += [str(chosen.out / name) for name in folders]
    command += ["--data.eval_files", str(chosen.held_out), "--eval.samples", str(chosen.questions)]
    command += ["--eval.prompts", str(chosen.questions)]
    command += ["--rollout.max_response_tokens", str(chosen.tokens), "--eval.completions", "false"]
    if chosen.cpu:
        command += ["--device", "cpu", "--model.dtype", "float32"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"telescope eval failed: {done.stderr[-2000:]}")
    for row, found in zip(folders.values(), json.loads(done.stdout), strict=True):
        row["accuracy"] = found["metrics"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", type=Path, default=DATA / "train.parquet")
    parser.add_argument("--held-out", type=Path, default=DATA / "held-out.parquet")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=720.0)
    parser.add_argument("--marks", type=int, default=6, help="policies that are saved")
    parser.add_argument("--questions", type=int, default=500, help="of the held-out ones")
    parser.add_argument("--responses", type=int, default=RESPONSES, help="per step")
    parser.add_argument("--generations", type=int, default=8, help="responses of one question")
    parser.add_argument("--tokens", type=int, default=400, help="longest response")
    parser.add_argument("--micro", type=int, default=32, help="rows of one forward and backward")
    parser.add_argument("--lr", type=float, default=1e-6, help="default: TRL's, 1e-6")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vllm", action="store_true", help="sample with vLLM in this process")
    parser.add_argument("--bfloat16", action="store_true", help="weights in bfloat16 too")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--cpu", action="store_true", help="does the command work?")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    chosen.out = chosen.out.resolve()
    chosen.out.mkdir(parents=True, exist_ok=True)
    summary = train(chosen)
    path = chosen.out / "summary.json"
    path.write_text(json.dumps(summary, indent=1), "utf-8")  # before what may fail
    measure(chosen, summary)
    path.write_text(json.dumps(summary, indent=1), "utf-8")
    print(f"{path}: {summary['steps']} steps, {summary['step_seconds']} s each")


if __name__ == "__main__":
    sys.path[:] = [
        str(ROOT),
        *(path for path in sys.path if Path(path or ".") != ROOT / "benchmarks"),
    ]
    main()
