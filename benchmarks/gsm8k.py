"""GSM8K from the questions to the tables, by one command.

    python benchmarks/gsm8k.py --model MODEL --questions DIR                  # seeds 0, 1, 2
    python benchmarks/gsm8k.py --model MODEL --questions DIR --variants grpo --seeds 0
    python benchmarks/gsm8k.py --model MODEL --questions DIR --variants ablations --seeds 0 \\
        --set steps=100 --no-test
    python benchmarks/gsm8k.py --render

DIR holds train.jsonl and test.jsonl of https://github.com/openai/grade-school-math. 500 training
questions are held out: settings are chosen by them, and they give the curve. The test set is used
twice, before training and after it, by `telescope eval`.

Runs are made one after the other, in --work. Each ends with a file in --out: the first line says
what was run, on what, how long it took and how it did on the test set; the other lines are its
curve. Runs that have a file are skipped, so a command that was cut off can be given once more.
A run's checkpoints are removed after its test: they take 12 bytes per weight of actor and critic.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.learn import (  # noqa: E402
    about,
    draw,
    environment,
    keep_of_run,
    read_rows,
    read_run,
    slim,
    write_run,
)
from recipes.gsm8k import HELD_OUT, convert  # noqa: E402

OUT = ROOT / "docs" / "results" / "gsm8k"
RECIPE = ROOT / "recipes" / "gsm8k.toml"
TEST = 1319
PHASES = ("rollout", "values", "reference", "reward", "advantages", "update_critic", "update_actor")
ABLATIONS: dict[str, dict[str, str]] = {
    "lam-0.95": {"credit.lam": "0.95"},
    "critic-warmup-10": {"critic_warmup": "10"},
    "critic-lr-5e-6": {"critic.lr": "5e-6"},
    "kl-0.001": {"credit.kl_coef": "0.001", "credit.kl_steps": "all"},
    "entropy-0.01": {"actor.entropy_coef": "0.01"},
    "4-per-question": {"rollout.batch_size": "128", "rollout.n": "4"},
}
"""What differs from the recipe. All have 512 responses per step."""
GROUPS = {"rollout.batch_size": "64", "rollout.n": "8", "actor.kl_loss_coef": "0"}
VARIANTS = {
    "recipe": {},
    **ABLATIONS,
    "grpo": {"credit.estimator": "grpo", **GROUPS},
    "rloo": {"credit.estimator": "rloo", **GROUPS},
}
SCORES = {
    "greedy, strict": "eval/greedy_accuracy",
    "greedy, by the last number": "eval/lenient/greedy_accuracy",
    "sampled, strict": "eval/sampled_accuracy",
    "sampled, by the last number": "eval/lenient/sampled_accuracy",
}
"""Title of a column -> the metric of `telescope eval`."""


# ---- one run


def telescope(*arguments: str) -> str:
    """Runs `telescope ...`; returns what it printed. Its progress goes to stderr."""
    command = [sys.executable, "-m", "telescope", *arguments]
    done = subprocess.run(
        command, env=environment(), stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise SystemExit(f"failed: telescope {' '.join(arguments)}")
    return done.stdout


def options(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


def given_settings(chosen: argparse.Namespace) -> dict[str, str]:
    settings = {"model.path": str(chosen.model)} if chosen.model else {}
    return settings | dict(pair.split("=", 1) for pair in chosen.set)


def train(variant: str, seed: int, chosen: argparse.Namespace, data: Path) -> Path:
    """Trains; returns the run's folder. A run that was cut off goes on."""
    name = f"{variant}-seed{seed}"
    settings = {
        "name": name,
        "dir": str(chosen.work),
        "seed": str(seed),
        "data.files": str(data / "train.parquet"),
        "data.eval_files": str(data / "held-out.parquet"),
        "eval.every": "40",
        "eval.samples": str(HELD_OUT),
    }
    settings |= VARIANTS[variant] | given_settings(chosen)
    telescope("train", str(chosen.recipe), "--resume", *options(settings))
    return chosen.work / name


def test(
    target: Path | str, chosen: argparse.Namespace, data: Path, *recipe: str
) -> dict[str, float]:
    """A run's accuracy on the test set by both ways of scoring; a model needs a `--recipe`."""
    files = str(data / "test.parquet")
    lenient = {"files": [files], "functions": [f"{ROOT}/recipes/gsm8k.py:lenient"], "weights": {}}
    settings = given_settings(chosen)
    settings.pop("model.path", None)
    settings.pop("steps", None)
    settings = {"eval.prompts": str(TEST), "eval.samples": str(TEST)} | settings
    settings |= {"data.eval_files": files, "eval.sets": json.dumps({"lenient": lenient})}
    found = telescope("eval", str(target), *recipe, "--json", *options(settings))
    metrics = json.loads(found)[0]["metrics"]
    return {title: round(metrics[name], 4) for title, name in SCORES.items()}


def header(run: Path, variant: str, metrics: list[dict], chosen: argparse.Namespace) -> dict:
    """What a run was, the medians of its steps and the peak of its memory."""
    steps = [row for row in metrics if "timing/step" in row]

    def median(name: str) -> float:
        return round(statistics.median(row[name] for row in steps if name in row), 3)

    peak = max((row.get("perf/peak_gib", 0.0) for row in steps), default=0.0)
    return {
        "run": run.name,
        "side": "Telescope",
        "variant": variant,
        "seed": int(run.name.rpartition("seed")[2]),
        "settings": VARIANTS[variant] | dict(pair.split("=", 1) for pair in chosen.set),
        "updates": len(steps),
        "seconds": round(sum(row["timing/step"] for row in steps), 1),
        "step_seconds": median("timing/step"),
        "phase_seconds": {name: median(f"timing/{name}") for name in PHASES},
        "length": median("response/length_mean"),
        "peak_gib": round(peak, 1),
        "date": str(datetime.date.today()),
        **about(sys.executable),
    }


def run_all(chosen: argparse.Namespace) -> None:
    data = prepare(chosen)
    for seed in chosen.seeds:
        for variant in chosen.variants:
            path = chosen.out / f"{variant}-seed{seed}.jsonl"
            if path.exists():
                continue
            run = train(variant, seed, chosen, data)
            metrics = read_rows(run / "metrics.jsonl")
            found = header(run, variant, metrics, chosen)
            if not chosen.no_test:
                found["test"] = test(run, chosen, data)
            write_run(path, found, slim(metrics))
            if (variant, seed) == ("recipe", chosen.seeds[0]):
                keep_of_run(run, chosen.out)
            if not chosen.keep:
                shutil.rmtree(run / "checkpoints", ignore_errors=True)
            print(f"{path}: {found['updates']} steps in {found['seconds']} s", file=sys.stderr)
    if not chosen.no_test and not (chosen.out / "before.json").exists():
        # last, because any other day would do as well
        model = chosen.model or "Qwen/Qwen2.5-Coder-0.5B-Instruct"
        before = test(model, chosen, data, "--recipe", str(chosen.recipe))
        (chosen.out / "before.json").write_text(json.dumps(before, indent=1) + "\n", "utf-8")


def prepare(chosen: argparse.Namespace) -> Path:
    """The parquet files of the questions."""
    data = chosen.work / "data"
    if not (data / "test.parquet").exists():
        held_out = data / "held-out.parquet"
        convert(chosen.questions / "train.jsonl", data / "train.parquet", held_out=held_out)
        convert(chosen.questions / "test.jsonl", data / "test.parquet")
    return data


# ---- the tables


def runs_of(out: Path) -> list[tuple[dict, list[dict]]]:
    """All runs with a file, the recipe's first."""
    found = [read_run(path) for path in sorted(out.glob("*.jsonl"))]
    order = list(VARIANTS)
    return sorted(
        found, key=lambda run: (order.index(run[0].get("variant", "recipe")), run[0]["seed"])
    )


def tables(out: Path) -> Iterator[str]:
    """The test set, then the held-out questions and what a step took."""
    runs = runs_of(out)
    tested = [head for head, _ in runs if "test" in head]
    if tested:
        yield f"| test set | {' | '.join(SCORES)} |"
        yield "|---" * (len(SCORES) + 1) + "|"
        before = out / "before.json"
        if before.exists():
            yield row_of("before training", json.loads(before.read_text("utf-8")))
        for head in tested:
            yield row_of(head["run"], head["test"])
        own = [head["test"] for head in tested if head["variant"] == "recipe"]
        if len(own) > 1:
            mean = {title: statistics.fmean(test[title] for test in own) for title in SCORES}
            yield row_of(f"mean of {len(own)} seeds of the recipe", mean)
        yield ""
    yield "| run | steps | held-out, greedy | sampled | s | s per step | tokens | GiB |"
    yield "|---|---|---|---|---|---|---|---|"
    for head, curve in runs:
        last = [row for row in curve if "greedy" in row][-1]
        cells = [head["run"], head["updates"], f"{last['greedy']:.3f}", f"{last['sampled']:.3f}"]
        cells += [f"{head['seconds']:.0f}", f"{head['step_seconds']:.2f}"]
        cells += [f"{head['length']:.0f}" if "length" in head else "–", head["peak_gib"]]
        yield f"| {' | '.join(map(str, cells))} |"


def row_of(name: str, scores: dict[str, float]) -> str:
    return f"| {name} | {' | '.join(f'{scores[title]:.3f}' for title in SCORES)} |"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder or hub name (default: the recipe's)")
    parser.add_argument("--questions", type=Path, help="folder of train.jsonl and test.jsonl")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    names = [*VARIANTS, "ablations"]
    parser.add_argument("--variants", nargs="+", choices=names, default=["recipe"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-test", action="store_true", help="leave the test set alone")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "gsm8k", help="run folders")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--render", action="store_true", help="only print tables, draw the curves")
    chosen = parser.parse_args(argv)
    if not chosen.render and not chosen.questions:
        parser.error("give --questions, the folder of train.jsonl and test.jsonl")
    if "ablations" in chosen.variants:
        chosen.variants = ["recipe", *ABLATIONS]
    chosen.work = chosen.work.resolve()
    chosen.out = chosen.out.resolve()
    return chosen


def main(argv: list[str] | None = None) -> None:
    chosen = parse(argv)
    chosen.out.mkdir(parents=True, exist_ok=True)
    if not chosen.render:
        run_all(chosen)
    print("\n".join(tables(chosen.out)))
    try:
        draw(runs_of(chosen.out), chosen.out / "curves.svg")
    except ModuleNotFoundError as missing:
        print(f"no curves: {missing}; draw them elsewhere by --render", file=sys.stderr)


if __name__ == "__main__":
    main()
