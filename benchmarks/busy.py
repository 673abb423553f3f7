"""Seconds per step of the built-in job, alone and beside processes that use every core.

    python -m benchmarks.busy --rounds 3

Each variant is a process of its own with other settings of OpenMP. The variants take turns, so
that what else the machine does meets all of them alike; compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from torture.busy import burning

VARIANTS = {
    "before: threads spin": {"GOMP_SPINCOUNT": "300000"},  # libgomp's default
    "automatic": {},
    "threads sleep": {"OMP_WAIT_POLICY": "passive"},
    "spin 10,000": {"GOMP_SPINCOUNT": "10000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
OPENMP = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "KMP_BLOCKTIME")


def seconds_per_step(variant: dict[str, str], steps: int) -> float:
    """The median over the steps of one run, without the first."""
    environment = {key: value for key, value in os.environ.items() if key not in OPENMP}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "telescope", "train", "--steps", str(steps)]
        command += ["--dir", folder, "--name", "run", "--eval.every", "0", "--eval.samples", "8"]
        command += ["--ledger.samples", "off", "--device", "cpu"]
        subprocess.run(command, env=environment | variant, check=True, capture_output=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    seconds = [row["timing/step"] for row in rows if "timing/step" in row]
    return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--burners", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for place, burners in (("alone", 0), ("busy", options.burners)):
            for name, variant in VARIANTS.items():
                with burning(burners):
                    seconds = seconds_per_step(variant, options.steps)
                found.setdefault((name, place), []).append(seconds)
                print(f"{place} {name}: {seconds:.2f} s", file=sys.stderr, flush=True)
    print("| OpenMP | alone, s/step | ratio | busy, s/step | ratio |\n|---|---|---|---|---|")
    base = {
        place: statistics.median(found[next(iter(VARIANTS)), place]) for place in ("alone", "busy")
    }
    for name in VARIANTS:
        cells = []
        for place in ("alone", "busy"):
            seconds = statistics.median(found[name, place])
            cells += [f"{seconds:.2f}", f"{seconds / base[place]:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
