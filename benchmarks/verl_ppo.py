"""verl 0.9.1 on GSM8K with the settings of recipes/gsm8k.toml: seconds, memory, accuracy.

    python recipes/gsm8k.py train.jsonl data/gsm8k/train.parquet --held-out data/gsm8k/held-out.parquet
    python -m benchmarks.verl_ppo MODEL --steps 20                              # PPO
    python -m benchmarks.verl_ppo MODEL --seconds 704 --evaluate data/gsm8k/held-out.parquet
    python -m benchmarks.verl_ppo MODEL --steps 20 --estimator grpo
    python -m benchmarks.verl_ppo MODEL --steps 20 --watch                      # with Telescope's plugin
    python -m benchmarks.verl_ppo tiny --device cpu --steps 4 --watch           # a dry run

MODEL is a Hugging Face folder; requirements-verl.txt says what must be installed. Batch, lengths,
learning rates, minibatches, λ, clips and reward are the recipe's; DIFFERENCES says what is not
equal. verl's files stay as they are: `--without` leaves out one of the patches of
_verl_patches.py. What follows `--` goes to verl as it is.

Everything measured goes into OUT/result.json. --watch records every second step: so watched and
unwatched steps of one run can be compared. Each recorded number is recomputed.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks._verl_patches import PATCHES
from benchmarks._verl_settings import RECIPE, environment, overrides
from telescope.config import load_config

PACKAGES = ("verl", "torch", "transformers", "vllm", "ray", "tensordict", "TransferQueue")
EVALUATED = [[name, "mean@1"] for name in ("acc", "form", "lenient")]
"""How verl's names of a validation end; `acc` is strict."""
DIFFERENCES = [
    "verl samples with vLLM in a process of its own, Telescope with CUDA graphs in the trainer's",
    "verl pads rows (its packing needs flash-attn), Telescope packs them",
    "verl computes the old log-probs by a forward, the recipe takes the sampler's",
    "verl's learning rates stay constant after their warm-up, the recipe's go linearly to 0",
    "verl's value head starts at random weights and its value loss is halved, the recipe's starts at 0",
    "verl keeps float32 weights and computes in bfloat16 by FSDP on one GPU",
    "verl shuffles by its own generator and drops the incomplete batch of an epoch",
]


# ---- running and measuring


class Memory(threading.Thread):
    """The most GPU memory of all processes together, looked at twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.ended = threading.Event()

    def run(self) -> None:
        ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while shutil.which(ask[0]) and not self.ended.wait(0.5):
            said = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split()
            self.peak = max([self.peak, *(float(mib) / 1024 for mib in said)])


def measured(args: argparse.Namespace, command: list[str], patches: list[str]) -> dict:
    memory = Memory()
    memory.start()
    started = time.time()
    with (args.out / "log.txt").open("w") as log:
        done = subprocess.run(
            command, env=environment(args, patches), stdout=log, stderr=log, check=False
        )
    memory.ended.set()
    rows = [json.loads(line) for line in read_lines(args.out / "metrics.jsonl")]
    if done.returncode:
        sys.exit(f"verl ended with {done.returncode}: {args.out / 'log.txt'}")
    return summary(rows, started) | {"peak_gib": round(memory.peak, 1) or None}


def read_lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def summary(rows: list[dict], started: float) -> dict:
    """Times and accuracies of verl's own log; `started` is when its command was given."""
    steps = [row["data"] | {"step": row["step"]} for row in rows if "timing_s/step" in row["data"]]
    if not steps:
        sys.exit("verl logged no step")
    phases = [name for name in steps[-1] if name.startswith("timing_s/") and name.count("/") == 1]
    later = steps[1:] or steps
    trained = 0.0
    curve = []
    for row in rows:
        data = row["data"]
        trained += data.get("timing_s/step", 0.0)
        curve.append(
            {"step": row["step"], "seconds": round(trained, 3)}
            | {
                name: data[key]
                for name, key in {"score": "critic/score/mean", "entropy": "actor/entropy"}.items()
                if key in data
            }
            | {
                key.split("/")[-2]: value
                for key, value in data.items()
                if key.startswith("val-") and key.split("/")[-2:] in EVALUATED
            }
        )
    first = steps[0]
    return {
        "steps": len(steps),
        "start_to_first_update_seconds": round(
            first["clock/time"] - started - first["clock/validated"], 1
        ),
        "training_seconds": round(trained, 1),
        "step_seconds": statistics.median(row["timing_s/step"] for row in later),
        "phase_seconds": {
            name.removeprefix("timing_s/"): round(statistics.median(row[name] for row in later), 4)
            for name in phases
            if all(name in row for row in later)
        },
        "trainer_peak_gib": max(
            value
            for row in steps
            for name, value in row.items()
            if name.endswith("perf/max_memory_allocated_gb")
        ),
        "curve": curve,
        "periods": periods(steps),
    }


def periods(steps: list[dict]) -> dict[int, float]:
    """Step -> seconds from the log line before it to its own, validations left out.

    Recording is in them: it comes after the trainer's own clock of the step.
    """
    return {
        now["step"]: now["clock/time"]
        - before["clock/time"]
        - (now["clock/validated"] - before["clock/validated"])
        for before, now in itertools.pairwise(steps)
    }


# ---- what was watched


def recomputed(folder: Path) -> dict:
    """Every recorded number of a watched run next to its recomputation: the largest differences."""
    from telescope.explain.trace import Tracer
    from telescope.ledger.reader import samples, steps

    found: dict[str, dict] = {}
    count = 0
    for step in steps(folder):
        for sample in samples(folder, step):
            count += 1
            tracer = Tracer(sample)
            written = [t for t, one in enumerate(sample.mask) if one]
            for trace in (trace for t in written for trace in tracer.traces(t)):
                if trace.recorded is None:
                    continue
                worst = found.setdefault(trace.name, {"tokens": 0, "worst": 0.0, "wrong": 0})
                worst["tokens"] += 1
                worst["worst"] = max(worst["worst"], abs(trace.result - trace.recorded))
                worst["wrong"] += trace.ok is False
    return {"steps": len(steps(folder)), "responses": count, "columns": found}


def watching(folder: Path, periods: dict[int, float]) -> dict:
    """Cost and correctness of a run of which every second step was recorded."""

    def median(odd: int) -> float | None:
        chosen = [seconds for step, seconds in periods.items() if step % 2 == odd and step > 2]
        return statistics.median(chosen) if chosen else None

    return {"watched_seconds": median(0), "unwatched_seconds": median(1), **recomputed(folder)}


# ---- the command


def machine() -> str:
    if shutil.which("nvidia-smi"):
        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    return f"{os.cpu_count()} CPU cores"


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def tiny(folder: Path) -> tuple[str, str]:
    """A random model of a few thousand weights, and questions it may answer by chance."""
    from recipes.gsm8k import convert
    from tests.test_recipes import write_model, write_questions

    (folder / "model").mkdir(exist_ok=True)
    write_model(folder / "model", "llama")
    questions = write_questions(folder)
    questions.write_text(questions.read_text("utf-8") * 16, "utf-8")
    convert(questions, folder / "train.parquet")
    return str(folder / "model"), str(folder / "train.parquet")


def show(result: dict) -> None:
    phases = ", ".join(f"{name} {s:.2f}" for name, s in result["phase_seconds"].items())
    print(f"first update after {result['start_to_first_update_seconds']} s")
    print(f"{result['steps']} steps, median {result['step_seconds']:.2f} s: {phases}")
    if "watched" in result:
        seen = result["watched"]
        print(f"recorded: {seen['responses']} responses of {seen['steps']} steps")
        for name, found in seen["columns"].items():
            print(
                f"  {name}: {found['tokens']} tokens recomputed, {found['wrong']} wrong, "
                f"worst difference {found['worst']:.1e}"
            )
        if seen["watched_seconds"] and seen["unwatched_seconds"]:
            share = seen["watched_seconds"] / seen["unwatched_seconds"] - 1
            print(
                f"  step watched {seen['watched_seconds']:.3f} s, "
                f"unwatched {seen['unwatched_seconds']:.3f} s: {100 * share:+.1f} %"
            )


def main(args: argparse.Namespace) -> None:
    args.out = args.out.resolve()
    if (args.out / "log.txt").exists():
        sys.exit(f"{args.out} holds a run: give another folder with --out")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.model == "tiny":
        args.model, args.data = tiny(args.out)
        args.rows, args.tokens = args.rows or 16, args.tokens or 16
    for name in ("model", "data", "evaluate"):
        given = getattr(args, name)
        if given and not Path(given).exists():
            sys.exit(f"there is no {given}")
        setattr(args, name, given and str(Path(given).resolve()))
    recipe = load_config(RECIPE, [])
    rows = args.rows or recipe.rollout.batch_size
    args.micro = min(args.micro, rows // recipe.actor.minibatches)
    chosen = {"critic-attention", "no-trl", "poll", "clock"}
    chosen |= {"cross-entropy"} if args.cross_entropy else set()
    chosen |= {"budget"} if args.seconds else set()
    patches = sorted(chosen - set(args.without))
    told = [*overrides(args, recipe), *args.more]
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *told]
    result = {
        "date": str(date.today()),
        "machine": machine(),
        "versions": versions(),
        "command": [sys.executable, *sys.argv],
        "overrides": told,
        "patches": patches,
        "differences": DIFFERENCES,
        **measured(args, command, patches),
    }
    if args.watch:
        result["watched"] = watching(args.out / "watched", result["periods"])
    (args.out / "result.json").write_text(json.dumps(result, indent=1), "utf-8")
    show(result)


def parse(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="HF folder, or `tiny`: random weights and three questions")
    parser.add_argument("--data", default="data/gsm8k/train.parquet", help="questions to train on")
    parser.add_argument("--estimator", choices=("gae", "grpo"), default="gae")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int)
    length.add_argument("--seconds", type=float, help="of training, validations left out")
    parser.add_argument("--evaluate", help="questions for the accuracy curve, greedy")
    parser.add_argument("--every", type=int, default=40, help="steps between two evaluations")
    parser.add_argument("--watch", action="store_true", help="record every second step")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--legacy", action="store_true", help="verl's trainer before V1")
    parser.add_argument("--rows", type=int, help="responses per step; default: the recipe's")
    parser.add_argument("--tokens", type=int, help="limit per response; default: the recipe's")
    parser.add_argument("--micro", type=int, default=32, help="rows of one forward and backward")
    parser.add_argument("--vllm-memory", type=float, default=0.4, help="share of the GPU for vLLM")
    parser.add_argument("--attention", default="sdpa", help="flash_attention_2 where it is there")
    parser.add_argument(
        "--cross-entropy",
        type=Path,
        help="flash_attn/ops/triton/cross_entropy.py of flash-attn 2.8.3, where it is not installed",
    )
    parser.add_argument("--without", action="append", default=[], choices=sorted(PATCHES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/verl"))
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    options.more = given[cut + 1 :]
    if options.seconds and options.legacy:
        parser.error("--seconds needs the V1 trainer; give --steps with --legacy")
    return options


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
