"""One recipe on many reasoning-gym tasks: what does a model learn without settings for each?

    python benchmarks/tasks.py                                           # one GPU, twelve tasks
    python benchmarks/tasks.py --recipe recipes/smollm2-arithmetic.toml  # the same with another
    python benchmarks/tasks.py --model DIR --steps 2 --parallel 1        # does the command work?

A run is a process of its own, --parallel at a time. Each adds a JSON object to
docs/results/tasks/RECIPE.jsonl when it ends; runs that are there already are skipped, so a command
that was cut off can be given once more. At the end, or with --render alone, README.md there is
written anew from all results. Seconds are of runs that shared the GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "reasoning-gym.toml"
RESULTS = ROOT / "docs" / "results" / "tasks"
NUMBER = r"-?\d+"
"""The last number of a response is its answer, where answers are numbers."""
TASKS: dict[str, dict[str, Any]] = {
    "chain_sum": {"options": {"max_terms": 2, "min_digits": 2, "max_digits": 2}, "answer": NUMBER},
    "letter_counting": {"answer": NUMBER},
    "products": {"options": {"min_digits": 1, "max_digits": 2}, "answer": NUMBER},
    "spell_backward": {"options": {"max_word_len": 5}},
    "gcd": {"answer": NUMBER},
    "leg_counting": {"answer": NUMBER},
    "basic_arithmetic": {"answer": NUMBER},
    "simple_equations": {"answer": NUMBER},
    "number_sequence": {"answer": NUMBER},
    "aiw": {"answer": NUMBER},
    "family_relationships": {},
    "syllogism": {},
}
"""Task -> its data.options, and data.answer where answers are numbers. No other setting differs."""
MEASURED = {
    "greedy": "eval/greedy_accuracy",
    "sampled": "eval/sampled_accuracy",
    "score": "reward/score_mean",
    "entropy": "actor/entropy",
    "length": "response/length_mean",
    "truncated": "response/truncated",
}
"""Our name -> the metric whose first and last value is kept."""


def command_of(task: str, chosen: argparse.Namespace, folder: str) -> list[str]:
    """The `telescope train` of one task."""
    data = TASKS[task]
    settings = {
        "name": task,
        "dir": folder,
        "seed": chosen.seed,
        "data.task": task,
        "data.options": json.dumps(data.get("options", {})),
        "data.answer": data.get("answer", "none"),
        "checkpoint.every": 0,
        "ledger.samples": "off",
    }
    if chosen.steps:
        settings["steps"] = chosen.steps
    if chosen.model:
        settings["model.path"] = chosen.model
    for pair in chosen.set:
        key, _, value = pair.partition("=")
        settings[key] = value
    command = [sys.executable, "-m", "telescope", "train", str(chosen.recipe)]
    for key, value in settings.items():
        command += [f"--{key}", str(value)]
    return command


def train(task: str, chosen: argparse.Namespace) -> dict[str, Any] | None:
    """Trains on one task; what is kept of it, or None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ended = subprocess.run(
            command_of(task, chosen, folder), cwd=ROOT, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - began
        if ended.returncode:
            say(f"{task}: failed\n{ended.stderr[-2000:]}")
            return None
        lines = (Path(folder) / task / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    kept: dict[str, Any] = {
        "task": task,
        "seed": chosen.seed,
        "steps": max(row["step"] for row in rows),
        "seconds": round(seconds),
        "date": str(datetime.date.today()),
        "device": device(),
        "settings": [*chosen.set, *([f"model.path={chosen.model}"] if chosen.model else [])],
    }
    for name, metric in MEASURED.items():
        values = [row[metric] for row in rows if metric in row]
        kept[name] = [round(values[0], 4), round(values[-1], 4)]
    kept["highest_entropy"] = round(max(row.get("actor/entropy", 0.0) for row in rows), 4)
    return kept


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def run_all(chosen: argparse.Namespace, out: Path) -> bool:
    """Trains on the tasks that have no result yet; whether all went well."""
    done = {(row["task"], row["seed"]) for row in read(out)}
    names = chosen.only or list(TASKS)
    waiting = [task for task in names if (task, chosen.seed) not in done]
    out.parent.mkdir(parents=True, exist_ok=True)

    def one(task: str) -> bool:
        row = train(task, chosen)
        if row is None:
            return False
        with out.open("a", encoding="utf-8") as file:  # one short write: whole lines
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        before, after = row["greedy"]
        say(f"{task}: greedy {before:.3f} → {after:.3f}, {row['seconds']} s")
        return True

    with ThreadPoolExecutor(chosen.parallel) as pool:
        return all(list(pool.map(one, waiting)))


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- the page


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line per run: first and last values."""
    titles = ["task", "greedy accuracy", "sampled", "mean score", "entropy (highest)", "tokens"]
    titles += ["cut off", "steps", "s"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    order = list(TASKS)
    for row in sorted(rows, key=lambda row: (order.index(row["task"]), row["seed"])):
        seed = f", seed {row['seed']}" if row["seed"] else ""
        entropy = f"{arrow(row['entropy'], 2)} ({row['highest_entropy']:.2f})"
        cells = [row["task"] + seed, arrow(row["greedy"]), arrow(row["sampled"])]
        cells += [arrow(row["score"]), entropy, arrow(row["length"], 1)]
        cells += [arrow(row["truncated"], 2), str(row["steps"]), str(row["seconds"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def arrow(pair: Sequence[float], digits: int = 3) -> str:
    before, after = pair
    return f"{before:.{digits}f} → {after:.{digits}f}"


def render(folder: Path) -> None:
    """Writes README.md: a table of each recipe with results."""
    lines = [
        "# One recipe, many tasks",
        "",
        "Written by `python benchmarks/tasks.py --render` from the jsonl files beside it. The tasks "
        "are reasoning-gym's; only `data.options` and `data.answer` differ between them. Accuracy "
        "is over 500 problems that were not trained on; the other columns are of the first and "
        "the last training step. Entropy is in nats per token.",
        "",
    ]
    for path in sorted(folder.glob("*.jsonl")):
        rows = read(path)
        dates = sorted({row["date"] for row in rows})
        when = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
        devices = ", ".join(sorted({row["device"] for row in rows}))
        lines += [f"## recipes/{path.stem}.toml", "", f"{devices}, {when}.", "", *table(rows), ""]
        notes = path.with_suffix(".notes.md")
        if notes.exists():
            lines += [notes.read_text("utf-8").strip(), ""]
    (folder / "README.md").write_text("\n".join(lines), "utf-8")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--only", nargs="*", choices=list(TASKS), metavar="TASK", default=[])
    parser.add_argument("--parallel", type=int, default=4, help="runs at a time (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default: the recipe's")
    parser.add_argument("--model", help="default: the recipe's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--render", action="store_true", help="only write the page")
    return parser.parse_args(argv)


def main() -> None:
    chosen = parse()
    well = chosen.render or run_all(chosen, chosen.out / f"{chosen.recipe.stem}.jsonl")
    if any(chosen.out.glob("*.jsonl")):
        render(chosen.out)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
