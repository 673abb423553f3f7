"""The files of docs/results/gsm8k, from runs of recipes/gsm8k.toml.

    telescope train recipes/gsm8k.toml --seed 0 --name seed0 --eval.every 40
    python benchmarks/gsm8k.py runs/seed0

Writes the curve of each run (NAME.jsonl: the first line says what it was), a picture of them all,
and the config, the report and two explained responses of the first. Seconds are those of the steps,
without evaluations. The page itself is written by hand.
"""

import argparse
import statistics
import tomllib
from pathlib import Path

from learn import ROOT, draw, keep_of_run, read_rows, slim, write_run

OUT = ROOT / "docs" / "results" / "gsm8k"
PHASES = ("rollout", "values", "reference", "reward", "advantages", "update_critic", "update_actor")


def header(run: Path, metrics: list[dict]) -> dict:
    """What a run was: its seed, and the medians and the peak of its steps."""
    config = tomllib.loads((run / "config.toml").read_text("utf-8"))
    steps = [row for row in metrics if "timing/step" in row]

    def median(name: str) -> float:
        return round(statistics.median(row[f"timing/{name}"] for row in steps), 3)

    return {
        "run": run.name,
        "side": "Telescope",
        "seed": config["seed"],
        "updates": len(steps),
        "seconds": round(sum(row["timing/step"] for row in steps), 1),
        "step_seconds": median("step"),
        "phase_seconds": {name: median(name) for name in PHASES},
        "peak_gib": round(max(row["perf/peak_gib"] for row in steps), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    curves = []
    for run in options.runs:
        metrics = read_rows(run / "metrics.jsonl")
        curve = (header(run, metrics), slim(metrics))
        write_run(options.out / f"{run.name}.jsonl", *curve)
        curves.append(curve)
    draw(curves, options.out / "curves.svg")
    keep_of_run(options.runs[0], options.out)


if __name__ == "__main__":
    main()
