"""Twelve planted faults and twelve healthy runs, three seeds each: what does the doctor say?

    python benchmarks/doctor.py
    python benchmarks/doctor.py --model smollm2 --device cuda

Makes the runs that are not there yet, one at a time, in runs/doctor-benchmark or, with another
model, in runs/doctor-benchmark-MODEL. Then it judges all of them and prints the table. A command
that was cut off can be given once more: runs that are there are kept. --judge only judges:
thresholds can be tuned without training again.

With another model only the twelve and twelve are made, unless --only names others: further cases
need the built-in task.

Half of the runs is for tuning thresholds, the other half is what the totals report
(`group_of` in _doctor_more_cases.py). Further cases have one run each and are reported apart.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(1, str(HERE.parent))

from _doctor_cases import Case  # noqa: E402
from _doctor_job import Job, broken, config_of, digest_of  # noqa: E402
from _doctor_more_cases import CASES, SEEDS, UNSEEN, group_of  # noqa: E402
from _doctor_overhead import overhead  # noqa: E402
from _doctor_peers import RIGHT, TOOLS  # noqa: E402
from _doctor_table import Verdict, table, totals  # noqa: E402

CACHE = HERE.parent / "runs" / "doctor-benchmark"
DONE = "done.json"


def cache_of(model: str) -> Path:
    """The folder of a model's runs: those of two models must not replace each other."""
    return CACHE if model == "builtin" else CACHE.with_name(f"{CACHE.name}-{Path(model).name}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- making the runs


def wanted(
    only: Iterable[str], seeds: Iterable[int], *, further: bool = True
) -> Iterator[tuple[Case, int]]:
    """Every run that is asked for: seeds 0 and 1 first, and of them those for tuning.

    `further`: besides the twelve and twelve, the cases that have one seed.
    """
    words = list(only)
    pairs = [
        (case, seed)
        for seed in seeds
        for case in CASES
        if (case not in UNSEEN or seed == 0)
        and (case.name in words or (not words and (further or case not in UNSEEN)))
    ]
    yield from sorted(
        pairs, key=lambda pair: (pair[1] > 1, pair[0] in UNSEEN, group_of(*pair) != "tuning")
    )


def make(case: Case, seed: int, given: argparse.Namespace) -> None:
    """Trains one run, unless it is there already with the same settings."""
    import torch

    from telescope.errors import TelescopeError
    from telescope.trainer import Trainer

    job = Job(given.model, given.device, given.steps, given.responses)
    config = config_of(case, seed, given.cache, job)
    digest = digest_of(case, seed, job)
    done = config.run_dir / DONE
    if done.is_file() and json.loads(done.read_text())["digest"] == digest:
        return
    shutil.rmtree(config.run_dir, ignore_errors=True)
    torch.set_num_threads(1)
    wall = time.perf_counter()
    processor = time.process_time()
    failure = None
    try:
        trainer = Trainer(config)
        with broken(case, trainer):
            trainer.fit()
    except TelescopeError as error:
        failure = str(error)
    shutil.rmtree(config.run_dir / "checkpoints", ignore_errors=True)
    result = {
        "digest": digest,
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - processor, 1),
        "failure": failure,
    }
    done.write_text(json.dumps(result))
    say(f"{config.name}: {result['cpu_seconds']} s of one core ({result['seconds']} s)")


# ---- judging them


def judge(case: Case, seed: int, run: Path) -> Verdict:
    """What the doctor says about a run."""
    from telescope.doctor.examine import examine

    found = examine(run).findings()
    return Verdict(
        case=case.name,
        what=case.what,
        seed=seed,
        expected=case.expected,
        group=group_of(case, seed),
        said=[(finding.id, finding.severity) for finding in found],
    )


def with_peers(verdicts: Sequence[Verdict], given: argparse.Namespace) -> list[Verdict]:
    """The verdicts with what other tools say, each asked by its own Python."""
    if not given.peers:
        return list(verdicts)
    runs = [numbers_of(given.cache / f"{v.case}-{v.seed}") for v in verdicts]
    said = {}
    for tool, python in given.peers.items():
        command = [python, str(HERE / "_doctor_peers.py"), tool]
        done = subprocess.run(command, input=json.dumps(runs), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{tool}: {done.stderr[-2000:]}")
        said[tool] = json.loads(done.stdout)
    return [
        replace(
            verdict,
            peers={tool: found[f"{verdict.case}-{verdict.seed}"] for tool, found in said.items()},
            peers_right=RIGHT.get(verdict.case, {}),
        )
        for verdict in verdicts
    ]


def numbers_of(run: Path) -> dict[str, Any]:
    """A run's curves for other tools: its metrics, and what they want from its responses."""
    from telescope.doctor.settings import read_settings
    from telescope.run.metrics import read_metrics

    settings = read_settings(run)
    rows = read_metrics(run / "metrics.jsonl")
    for row in rows:
        parts = {name: row.get(f"reward/{name}") for name in ("verdict", "sum")}
        row["parts"] = {name: value for name, value in parts.items() if value is not None}
        if "actor/pg_loss" in row:
            row |= of_responses(run, row["step"])
    return {
        "name": run.name,
        "algorithm": settings["credit.estimator"] if settings["rollout.n"] > 1 else "ppo",
        "settings": {
            "group_size": settings["rollout.n"],
            "max_response_length": settings["rollout.max_response_tokens"],
            "kl_coef": settings["credit.kl_coef"],
            "entropy_coef": settings["actor.entropy_coef"],
            "learning_rate": settings["actor.lr"],
        },
        "rows": rows,
    }


def of_responses(run: Path, step: int) -> dict[str, float]:
    """Spread of the scores, longest response, and share of groups whose scores are equal."""
    from telescope import ledger

    table = ledger.read(run, step, ["score", "prompt_index", "response_mask"]).to_pylist()
    scores = [row["score"] for row in table]
    found = {
        "score_std": statistics.pstdev(scores),
        "length_max": float(max(sum(row["response_mask"]) for row in table)),
    }
    groups: dict[int, list[float]] = {}
    for row in table:
        groups.setdefault(row["prompt_index"], []).append(row["score"])
    if len(groups) < len(table) / 2:
        flat = [len(set(group)) == 1 for group in groups.values()]
        found["flat_groups"] = sum(flat) / len(flat)
    return found


def judge_all(given: argparse.Namespace) -> list[Verdict]:
    verdicts = []
    for case in CASES:
        for seed in given.seeds:
            run = given.cache / f"{case.name}-{seed}"
            if (run / DONE).is_file() and (not given.only or case.name in given.only):
                if given.tuning and group_of(case, seed) != "tuning":
                    continue
                verdicts.append(judge(case, seed, run))
    return with_peers(verdicts, given)


def pairs(given: Sequence[str]) -> dict[str, str]:
    """["rldoctor=/venv/bin/python"] as a dictionary."""
    found = dict(pair.split("=", 1) for pair in given)
    unknown = set(found) - set(TOOLS)
    if unknown:
        sys.exit(f"--peers {min(unknown)}: use {', '.join(TOOLS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--cache", type=Path, help="folder of the runs")
    parser.add_argument("--model", default="builtin", help="other model: a folder, or smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, help="training steps of a run")
    parser.add_argument("--responses", type=int, help="responses per training step")
    parser.add_argument("--judge", action="store_true", help="only judge the runs that are there")
    parser.add_argument("--tuning", action="store_true", help="judge the half for tuning alone")
    parser.add_argument(
        "--peers",
        nargs="*",
        default=[],
        metavar="TOOL=PYTHON",
        help=f"also ask {', '.join(TOOLS)}, each by a Python that has it installed",
    )
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    parser.add_argument(
        "--overhead", action="store_true", help="only measure what the checks cost while training"
    )
    given = parser.parse_args()
    given.cache = given.cache or cache_of(given.model)
    if given.overhead:
        print("\n".join(overhead(given.cache)))
        return
    given.peers = pairs(given.peers)
    if not given.judge:
        further = given.model == "builtin"
        for case, seed in wanted(given.only, given.seeds, further=further):
            make(case, seed, given)
    verdicts = judge_all(given)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=1))
    print("\n".join(table(verdicts, list(given.peers))))
    print()
    print("\n".join(totals(verdicts, list(given.peers))))


if __name__ == "__main__":
    main()
