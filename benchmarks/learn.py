"""SmolLM2-135M-Instruct learns arithmetic with three seeds, beside TRL's PPO for as many seconds.

    python benchmarks/learn.py

Trains recipes/smollm2-arithmetic.toml once per seed, then runs benchmarks/_trl_arithmetic.py for
the median of their training seconds, and writes docs/results/smollm2-arithmetic: a file per run
(the first line says what it was, the others are its curve), README.md and curves.svg of them all,
and the first seed's config, report and two explained responses. A run's file is written when it
ends; one that is there already is not run again (--again does), so that a command which was cut off
can be given once more.

Training seconds are those of the steps, without evaluations, on both sides. Start-up is apart: from
the process's beginning to the first step, the evaluation before it included. --render writes README
and picture from the files alone.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RECIPE = ROOT / "recipes" / "smollm2-arithmetic.toml"
OUT = ROOT / "docs" / "results" / "smollm2-arithmetic"
TRL_WORKER = HERE / "_trl_arithmetic.py"
REPORT_BYTES = 1_400_000
KINDS = ("greedy", "sampled")
COLUMNS = {
    "reward/score_mean": "score",
    "reward/kl": "kl",
    "actor/entropy": "entropy",
    "eval/greedy_accuracy": "greedy",
    "eval/sampled_accuracy": "sampled",
}
QUICK = {
    "device": "cpu",
    "steps": "4",
    "model.dtype": "float32",
    "rollout.batch_size": "16",
    "rollout.max_response_tokens": "8",
    "data.size": "64",
    "eval.prompts": "16",
    "eval.samples": "16",
    "eval.every": "2",
}
ABOUT = """\
import json, sys
from importlib.metadata import PackageNotFoundError, version
import torch
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return getattr(sys.modules.get(name.replace("-", "_")), "__version__", "?")
import telescope
versions = {name: of(name) for name in ("torch", "transformers", "reasoning-gym")}
device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
print(json.dumps({"device": device, "versions": {"telescope": telescope.__version__, **versions}}))
"""
SAME = """\
Equal on both sides: the weights that policy, value model and reference start from; the problems \
to train on and the {held_out} held out,
their chat prompts and scorer (reasoning-gym's, on the last number in the response); at most \
{tokens} tokens per response, temperature 1;
{batch} responses per update, {minibatches} optimizer steps on each; AdamW, learning rate {lr:g} \
for the policy and {critic_lr:g} for the
value model, {warmup} updates of warm-up; KL penalty {kl_coef:g} (k1, in the token rewards), γ \
{gamma:g}, λ {lam:g}, advantages whitened
over the batch; ratio clip {clip:g}, value clip {clip_value:g}; {clipped}a value head that starts \
at zero{seconds}.\
"""
DIFFERS = """\
- Sampling: TRL calls transformers' `generate` on the float32 policy (TF32 products), till the \
longest response of the batch has ended;
  Telescope's sampler decodes in bfloat16 by captured CUDA graphs.
- Precision of the update: TRL float32 with TF32 products (its `bf16` has no effect with \
transformers 5; `--precision mixed` tells
  accelerate directly to use bfloat16 autocast); Telescope bfloat16 weights with float32 masters.
- Work per update: TRL computes padded rows and the logits of every position, prompts too; \
Telescope packs rows without padding, and
  computes the logits of response tokens alone.
- π_old: TRL takes the sampler's own log-probs; Telescope computes them by a forward of the \
trained model.
- Entropy bonus: the recipe's 0.01 in Telescope; TRL's PPO has none.
- Schedule: both rates go linearly to 0, Telescope's with its updates, TRL's with the seconds: \
how many updates it will have is not known
  before. So a run of few updates has come to rest after them, and Telescope's after as many has \
not.
- The score's place: TRL adds it one position after the last token, if there is one, and trains a \
value there too; Telescope adds it on the
  last token.
- Losses: TRL steps policy and value model together on policy loss + 0.1 · value loss; in \
Telescope each has its optimizer and loss. AdamW
  cancels the factor 0.1, but for the clipping: the value model's gradients are clipped at ten \
times the norm.
- Order of the problems: each side shuffles by its own generator, and TRL leaves out the \
incomplete batch at the end of an epoch.
- Records: Telescope keeps every number of 32 responses a step (its ledger) and its metrics, \
within the seconds counted; TRL keeps none.
- In TRL's favour: a pad token of its own (with the tokenizer's, which is also the end of a turn, \
it would not see the ends of the prompt's
  turns), one micro-batch per minibatch (otherwise it takes one optimizer step per epoch, not one \
per minibatch), a value head set to zero
  and a learning rate for it, gradient clipping before each of its optimizer steps (its PPO has \
none; `--clip-grad 0` leaves it out), TF32,
  no gradient checkpointing, and its two `gc.collect()` per update do nothing.
- Held-out accuracy: each side samples by its own means and in its own precision, so that they \
differ a little before training too.\
"""


def say(text: str) -> None:
    print(text, flush=True)


# ---- files of runs


def slim(metrics: list[dict]) -> list[dict]:
    """Rows of metrics.jsonl, one per step: seconds of training so far, and what is drawn."""
    rows: dict[int, dict] = {}
    seconds = 0.0
    for metric in metrics:
        seconds += metric.get("timing/step") or 0.0
        row = rows.setdefault(metric["step"], {"step": metric["step"]})
        row["seconds"] = round(seconds, 3)
        row |= {
            short: round(metric[name], 5)
            for name, short in COLUMNS.items()
            if metric.get(name) is not None
        }
    return list(rows.values())


def write_run(path: Path, header: dict, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in (header, *rows)), "utf-8"
    )


def read_run(path: Path) -> tuple[dict, list[dict]]:
    header, *rows = read_rows(path)
    return header, rows


def read_rows(path: Path) -> list[dict]:
    """Whole lines of a file that may still be written."""
    rows = []
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def evaluated(rows: list[dict]) -> list[dict]:
    return [row for row in rows if "greedy" in row]


# ---- running


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def about(python: str) -> dict:
    """Device and versions, as the runs will see them."""
    done = subprocess.run(
        [python, "-P", "-c", ABOUT], env=environment(), capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{python} cannot import what a run needs:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def watched(
    name: str, command: list[str], log: Path, rows_at: Path
) -> tuple[int, dict[str, float]]:
    """Runs the command and watches its rows.

    (exit status, seconds from its beginning to its first row, and on to its last).
    """
    say(f"{name}: begins; its output: {log}")
    began, seen, stamps = time.perf_counter(), 0, []
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment(), cwd=ROOT
        )
        try:
            while True:
                ended = process.poll() is not None
                if rows_at.exists() and (ended or rows_at.stat().st_size > seen):
                    seen = rows_at.stat().st_size
                    rows = read_rows(rows_at)
                    stamps += [time.perf_counter() - began] * (len(rows) - len(stamps))
                    tell(name, rows, stamps[-1] if stamps else 0.0)
                if ended:
                    break
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    took = time.perf_counter() - began
    if process.returncode:
        say(
            f"{name}: ended with status {process.returncode} after {took:.0f} "
            f"s:\n{log.read_text(errors='replace')[-3000:]}"
        )
    first, last = (stamps[0], stamps[-1]) if stamps else (took, took)
    return process.returncode, {
        "startup_seconds": round(first, 1),
        "wall_seconds": round(last - first, 1),
        "process_seconds": round(took, 1),
    }


TOLD: dict[str, int] = {}


def tell(name: str, rows: list[dict], wall: float) -> None:
    """A line for each evaluation that is new."""
    found = [row for row in rows if "greedy" in row or "eval/greedy_accuracy" in row]
    for row in found[TOLD.get(name, 0) :]:
        greedy, sampled = (row.get(f"eval/{kind}_accuracy", row.get(kind)) for kind in KINDS)
        say(
            f"{name}: {wall:6.1f} s  step {row['step']}  held out: greedy {greedy:.3f} sampled "
            f"{sampled:.3f}"
        )
    TOLD[name] = len(found)


def run_seed(seed: int, args: argparse.Namespace, facts: dict) -> bool:
    name = f"seed{seed}"
    target, run = args.out / f"{name}.jsonl", args.work / name
    if target.exists() and not args.again and read_run(target)[0]["settings"] == args.settings:
        say(f"{name}: {target.name} is there already")
        return True
    if run.exists():
        shutil.rmtree(run)
    settings = [part for key, value in args.settings.items() for part in (f"--{key}", value)]
    command = [
        sys.executable,
        "-P",
        "-c",
        "from telescope.commands import main; main()",
        "train",
        str(args.recipe),
    ]
    command += ["--seed", str(seed), "--name", name, "--dir", str(args.work), *settings]
    metrics_at = run / "metrics.jsonl"
    status, clocks = watched(name, command, args.work / f"{name}.log", metrics_at)
    metrics = read_rows(metrics_at)
    rows = slim(metrics)
    if status or not evaluated(rows):
        return False
    peak = max((row.get("perf/peak_gib") or 0.0 for row in metrics), default=0.0)
    header = {
        "run": name,
        "side": "Telescope",
        "seed": seed,
        "seconds": rows[-1]["seconds"],
        **clocks,
        "updates": rows[-1]["step"],
    }
    header |= {
        "peak_gib": round(peak, 2),
        **facts,
        "date": str(date.today()),
        "parallel": args.parallel,
        "settings": args.settings,
    }
    header |= on_fresh_problems(run, args.fresh)
    write_run(target, header, rows)
    say(f"{name}: {header['updates']} steps in {header['seconds']:.1f} s of training: {target}")
    if seed == args.seeds[0]:
        keep_of_run(run, args.out)
    return True


def on_fresh_problems(run: Path, count: int) -> dict:
    """Accuracy on problems that were neither trained on nor held out, by a process of its own: one
    that fails loses no run.
    """
    command = [sys.executable, __file__, "--fresh", str(count), "--try", str(run)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        say(f"no fresh problems: {done.stderr[-1000:]}")
        return {}
    return {"fresh": json.loads(done.stdout.splitlines()[-1])}


def try_fresh(run: Path, count: int) -> dict:
    sys.path.append(str(HERE))
    from _overoptimise_worker import unseen_rows

    from telescope.config import load_config
    from telescope.run.evaluate import evaluate_run

    fresh = unseen_rows(load_config(run / "config.toml"), count)
    found = evaluate_run(run, overrides=[("eval.samples", str(len(fresh)))], rows=fresh)
    return {
        "problems": len(fresh),
        **{kind: round(found[f"eval/{kind}_accuracy"], 5) for kind in KINDS},
    }


def keep_of_run(run: Path, out: Path) -> None:
    """Config, report and two explained responses.

    A run counts without them, so that none of their faults may lose it.
    """
    for keep in (keep_config, keep_report, keep_samples):
        try:
            keep(run, out)
        except Exception as error:
            say(f"{keep.__name__}: {type(error).__name__}: {error}")


def keep_config(run: Path, out: Path) -> None:
    text = (run / "config.toml").read_text("utf-8")
    text = re.sub(r"\A# crc32.*\n", "", text)  # the folder changes
    (out / "config.toml").write_text(re.sub(r'(?m)^dir = ".*"$', 'dir = "runs"', text), "utf-8")


def keep_report(run: Path, out: Path) -> None:
    from telescope.viewer import report

    report.MAX_BYTES = REPORT_BYTES
    report.write_report(run, out / "report.html")


def keep_samples(run: Path, out: Path) -> None:
    """A wrong response of the first recorded step and a right one of the last, if there are such,
    as `telescope explain` prints them.
    """
    from telescope import ledger

    recorded = ledger.steps(run)
    for when, step, right in (("first", recorded[0], False), ("last", recorded[-1], True)):
        samples = ledger.samples(run, step)
        position = next(
            (
                i
                for i, sample in enumerate(samples)
                if (sample.score >= 1) == right and len(sample) > 1
            ),
            0,
        )
        choice = ["--step", str(step), "--sample", str(position), "--lang", "en", "--plain"]
        command = [
            sys.executable,
            "-P",
            "-c",
            "from telescope.commands import main; main()",
            "explain",
            str(run),
            *choice,
        ]
        done = subprocess.run(
            command,
            env=environment() | {"COLUMNS": "100"},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            say(f"telescope explain: {done.stderr[-500:]}")
            continue
        title = f"$ telescope explain runs/{run.name} {shlex.join(choice[:-1])}\n\n"
        (out / f"{when}-step.txt").write_text(title + done.stdout, "utf-8")


def trl_python(given: str | None) -> str | None:
    """A python that has TRL's PPO: this one, or that of .venv-trl."""
    why = ""
    for python in (
        [given] if given else [sys.executable, str(ROOT / ".venv-trl" / "bin" / "python")]
    ):
        if shutil.which(python):
            code = "import trl.experimental.ppo, datasets, reasoning_gym, pydantic"
            done = subprocess.run(
                [python, "-P", "-c", code], env=environment(), capture_output=True, text=True
            )
            if not done.returncode:
                return python
            why = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
    say(f"TRL is left out: no python that imports it ({why}); --trl-python names one")
    return None


def run_trl(
    python: str,
    seconds: float,
    extra: str,
    seed: int,
    model: Path,
    args: argparse.Namespace,
    facts: dict,
) -> bool:
    name = "-".join(
        ["trl", *re.findall(r"[A-Za-z0-9.]+", extra), *([f"seed{seed}"] if seed else [])]
    )
    target, rows_at, log = (
        args.out / f"{name}.jsonl",
        args.work / f"{name}.rows.jsonl",
        args.work / f"{name}.log",
    )
    if target.exists() and not args.again and "broke_off" not in read_run(target)[0]:
        say(f"{name}: {target.name} is there already")
        return True
    rows_at.unlink(missing_ok=True)
    recipe = args.work / "trl-config.toml"
    recipe.write_text(config_text(args), "utf-8")
    command = [
        python,
        "-P",
        str(TRL_WORKER),
        "--recipe",
        str(recipe),
        "--model",
        str(model),
        "--seconds",
        f"{seconds:.3f}",
    ]
    command += ["--seed", str(seed), "--out", str(rows_at), *shlex.split(extra)]
    status, clocks = watched(name, command, log, rows_at)
    rows = [{key: round(value, 5) for key, value in row.items()} for row in read_rows(rows_at)]
    if not evaluated(rows):
        return False
    said = [row for row in read_rows(log) if isinstance(row, dict) and "curve" in row]
    result = said[-1] if said else {}
    result.pop("curve", None)
    header = {
        "run": name,
        "side": "TRL",
        "seed": seed,
        "seconds": rows[-1]["seconds"],
        **clocks,
        "updates": rows[-1]["step"],
    }
    header |= {
        "peak_gib": round(result["peak_gib"], 2) if result.get("peak_gib") else None,
        "device": result.get("device", facts["device"]),
    }
    header |= {
        "versions": result.get("versions", {}),
        "date": str(date.today()),
        "arguments": extra,
        "settings": result.get("settings", {}),
    }
    if status:
        header["broke_off"] = status
    write_run(target, header, rows)
    say(f"{name}: {header['updates']} updates in {header['seconds']:.1f} s of training: {target}")
    return not status


def config_text(args: argparse.Namespace) -> str:
    from telescope.config import load_config, to_toml

    return to_toml(load_config(args.recipe, list(args.settings.items())))


def model_folder(args: argparse.Namespace) -> Path:
    from telescope.config import load_config
    from telescope.models import smollm

    path = load_config(args.recipe, list(args.settings.items())).model.path
    return smollm.ensure_model() if path == "smollm2" else Path(path)


def make_quick(args: argparse.Namespace) -> None:
    """A tiny random model, few steps, on the CPU: whether the command works, not what comes out."""
    sys.path.append(str(HERE))
    from _trl_arithmetic import write_tiny_model

    from telescope.models import smollm
    from telescope.models.load import quiet

    with quiet():
        model = write_tiny_model(args.work / "tiny", smollm.ensure_model())
    args.settings = QUICK | {"model.path": str(model)} | args.settings


def run(args: argparse.Namespace) -> bool:
    """Every seed, then TRL; README and picture are written anew after each part.

    Whether all of it ended well.
    """
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    say(f"work in {args.work}, results in {args.out}")
    facts = about(sys.executable)
    say(f"{facts['device']}, {facts['versions']}")
    if args.quick:
        make_quick(args)
    with ThreadPoolExecutor(args.parallel) as pool:
        ended = list(pool.map(lambda seed: run_seed(seed, args, facts), args.seeds))
    if any(args.out.glob("seed*.jsonl")):
        render(args.out)
    python = None if args.no_trl else trl_python(args.trl_python)
    if python:
        ours = [read_run(path)[0] for path in sorted(args.out.glob("seed*.jsonl"))]
        if not ours and args.trl_seconds is None:
            say(
                "TRL is left out: no run of Telescope says for how many seconds; --trl-seconds does"
            )
            return False
        seconds = args.trl_seconds or statistics.median(header["seconds"] for header in ours)
        model = model_folder(args)
        for extra in args.trl_args or [""]:
            for seed in args.trl_seeds:
                ended.append(run_trl(python, seconds, extra, seed, model, args, facts))
                render(args.out)
    return all(ended)


# ---- the page


def render(out: Path) -> None:
    runs = [
        read_run(path)
        for path in (
            *sorted(out.glob("seed*.jsonl")),
            *sorted(out.glob("trl*.jsonl"), key=lambda path: path.stem),
        )
    ]
    runs = [(header, rows) for header, rows in runs if evaluated(rows)]
    runs.sort(
        key=lambda run: run[0].get("settings", {}).get("precision") == "mixed"
    )  # which TRL does not do of itself
    if not runs:
        sys.exit(f"{out} has no seed*.jsonl: run without --render first")
    (out / "README.md").write_text(readme(out, runs), "utf-8")
    try:
        draw(runs, out / "curves.svg")
    except ImportError as error:
        say(f"no picture: {error}; pip install matplotlib, then --render")
    say(f"written: {out / 'README.md'}")


def title(header: dict) -> str:
    if header["side"] == "Telescope":
        return f"Telescope, seed {header['seed']}"
    arguments = f" {header['arguments']}" if header.get("arguments") else ""
    return f"TRL {header['versions'].get('trl', '1.12')}{arguments}, seed {header['seed']}" + (
        ", broke off" if "broke_off" in header else ""
    )


def readme(out: Path, runs: list[tuple[dict, list[dict]]]) -> str:
    ours = [(header, rows) for header, rows in runs if header["side"] == "Telescope"]
    theirs = [(header, rows) for header, rows in runs if header["side"] == "TRL"]
    lines = ["# SmolLM2-135M-Instruct learns to add and subtract", ""]
    lines += [
        "Accuracy on held-out problems before and after PPO with [the "
        "recipe](../../../recipes/smollm2-arithmetic.toml): "
        "sums and differences of two numbers of two digits, of which none held out is trained on.",
        "",
        *([f"![held-out accuracy against seconds of training](curves.svg)\n{out_note(out)}", ""]),
        *table(runs),
        "",
    ]
    if len(ours) > 1:
        lines += [mean_line(ours), ""]
    fresh = [(header, header["fresh"]) for header, _ in ours if "fresh" in header]
    if fresh:
        found = (
            f"{title(header)} {on['greedy']:.3f} greedy and {on['sampled']:.3f} sampled of "
            f"{on['problems']}"
            for header, on in fresh
        )
        lines += [
            "On further problems, neither trained on nor held out, so that no setting was chosen "
            f"by them: {'; '.join(found)}.",
            "",
        ]
    lines += [
        "Training seconds are those of the steps, without evaluations; wall seconds go from the "
        "first step to the end of the last "
        "evaluation. Start-up is from the beginning of the process to the first step, the "
        "evaluation before it included. "
        "× is after divided by before. Peak GiB is the most that torch held on the GPU.",
        "",
    ]
    if theirs:
        lines += [*reached(ours, theirs), ""]
    lines += ["## Conditions", "", *conditions(runs), ""]
    if theirs:
        lines += [
            "## What differs between the two sides",
            "",
            *differences(theirs[0][0], [header for header, _ in ours]),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def out_note(out: Path) -> str:
    """Links to what the folder holds of one run."""
    known = {
        "report.html": "[the run's page](report.html)",
        "config.toml": "[its config](config.toml)",
        "first-step.txt": "a response [of the first step](first-step.txt)",
        "last-step.txt": "and one [of the last](last-step.txt), explained number by number",
    }
    there = [text for name, text in known.items() if (out / name).exists()]
    config = out / "config.toml"
    seed = tomllib.loads(config.read_text("utf-8"))["seed"] if config.exists() else 0
    return f"\nOf seed {seed}: {', '.join(there)}." if there else ""


def table(runs: list[tuple[dict, list[dict]]]) -> list[str]:
    lines = [
        "| run | updates | training s | wall s | start-up s | peak GiB | greedy before | after | "
        "× | sampled before | after | × |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for header, rows in runs:
        found = evaluated(rows)
        cells = [
            title(header),
            str(header["updates"]),
            *(f"{header[f'{clock}seconds']:.0f}" for clock in ("", "wall_", "startup_")),
        ]
        cells.append(f"{header['peak_gib']:.1f}" if header.get("peak_gib") else "–")
        for kind in KINDS:
            before, after = found[0][kind], found[-1][kind]
            cells += [f"{before:.3f}", f"**{after:.3f}**", times(before, after)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def times(before: float, after: float) -> str:
    return f"{after / before:.1f}" if before else "–"


def mean_line(ours: list[tuple[dict, list[dict]]]) -> str:
    parts = []
    for kind in KINDS:
        before, after = ([evaluated(rows)[i][kind] for _, rows in ours] for i in (0, -1))
        spread = f"{min(after):.3f}–{max(after):.3f}"
        parts.append(
            f"{kind} {statistics.fmean(before):.3f} → {statistics.fmean(after):.3f} ({spread})"
        )
    return f"Mean over Telescope's {len(ours)} seeds: {', '.join(parts)}."


def reached(
    ours: list[tuple[dict, list[dict]]], theirs: list[tuple[dict, list[dict]]]
) -> list[str]:
    """When Telescope was first seen where a TRL run ended, by its seconds and by its updates.

    Of those that ended above their start.
    """
    lines = []
    for header, rows in theirs:
        goal, start = evaluated(rows)[-1]["greedy"], evaluated(rows)[0]["greedy"]
        if goal <= start:
            lines.append(
                f"- {title(header)} ended at {goal:.3f} greedy after {header['updates']} updates, "
                f"where it had begun at {start:.3f}."
            )
            continue
        words = []
        for mine, curve in ours:
            there = next((row for row in evaluated(curve) if row["greedy"] >= goal), None)
            words.append(
                f"seed {mine['seed']} "
                + (
                    f"after {there['seconds']:.0f} s and {there['step']} updates"
                    if there
                    else "never"
                )
            )
        ended = f"- {title(header)} ended at {goal:.3f} greedy after {header['updates']} updates"
        lines.append(f"{ended}; Telescope's evaluations were first there: {', '.join(words)}.")
    return lines


def conditions(runs: list[tuple[dict, list[dict]]]) -> list[str]:
    ours = [header for header, _ in runs if header["side"] == "Telescope"]
    settings = {
        key: value
        for key, value in (ours[0].get("settings", {}) if ours else {}).items()
        if key != "model.path"
    }
    parallel = max((header.get("parallel", 1) for header in ours), default=1)
    sets = "".join(f" --set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
    given = [header["arguments"] for header, _ in runs if "arguments" in header]
    trl = (
        ""
        if given == [""]
        else "".join(f" --trl-args {shlex.quote(arguments)}" for arguments in given)
    )
    versions: dict[str, str] = {}
    for header, _ in runs:
        versions |= header.get("versions", {})
    dates = sorted({header["date"] for header, _ in runs})
    lines = [
        f"- {' and '.join(sorted({header['device'] for header, _ in runs}))}, "
        f"{' to '.join(sorted({dates[0], dates[-1]}))}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items()),
        "- the whole: `python "
        f"benchmarks/learn.py{f' --parallel {parallel}' if parallel > 1 else ''}{sets}{trl}`; "
        "this page and the picture from the files: the same with `--render`",
    ]
    train = "".join(f" --{key} {shlex.quote(value)}" for key, value in settings.items())
    lines.append(f"- one seed: `telescope train recipes/smollm2-arithmetic.toml --seed 0{train}`")
    together = [str(header["seed"]) for header in ours if header.get("parallel", 1) > 1]
    if together:
        at_once = f"{parallel} at a time on one device, which lengthens their seconds"
        alone = [str(header["seed"]) for header in ours if header.get("parallel", 1) == 1]
        lines.append(
            f"- seeds {', '.join(together)} ran {at_once}"
            + (f"; seed {', '.join(alone)} ran alone" if alone else "")
        )
    lines += [f"- {title(header)}: {header['note']}" for header, _ in runs if header.get("note")]
    return lines


def differences(trl: dict, ours: list[dict]) -> list[str]:
    settings = trl.get("settings") or {}
    if not settings:
        return [DIFFERS]
    batch, clip_grad = settings["local_rollout_forward_batch_size"], settings.get("clip_grad")
    same = SAME.format(
        held_out=(ours[0] if ours else trl).get("settings", {}).get("eval.prompts", 500),
        tokens=settings["response_length"],
        batch=batch,
        minibatches=settings["num_mini_batches"] * settings["num_ppo_epochs"],
        lr=settings["learning_rate"],
        critic_lr=settings["critic_lr"],
        warmup=settings["warmup_updates"],
        clip=settings["cliprange"],
        clip_value=settings["cliprange_value"],
        clipped=f"gradients clipped to norm {clip_grad:g}, policy and value model each;\n"
        if clip_grad
        else "",
        **{key: settings[key] for key in ("kl_coef", "gamma", "lam")},
        seconds=seconds_of(trl, ours),
    )
    note = (
        ""
        if not trl.get("arguments")
        else f" (a TRL run with arguments of its own has these instead: `{trl['arguments']}`)"
    )
    return [same + note, "", DIFFERS]


def seconds_of(trl: dict, ours: list[dict]) -> str:
    """Whether both sides trained for as long."""
    mine = [header["seconds"] for header in ours]
    if all(abs(seconds / trl["seconds"] - 1) < 0.05 for seconds in mine):
        return "; the seconds of training"
    each = ", ".join(f"{seconds:.0f}" for seconds in mine)
    seconds = f"{trl['seconds']:.0f} for TRL and {each} for Telescope"
    return f".\nNot equal: the seconds of training, {seconds}"


def draw(runs: list[tuple[dict, list[dict]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "telescope", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
        blues, reds = (
            ["#1f4e9c", "#3c7dd6", "#86b3f0"],
            ["#c0392b", "#e08a3c", "#8e44ad", "#7f8c8d", "#27ae60", "#2c3e50"],
        )
        for axis, kind in zip(axes, KINDS, strict=True):
            counts = {"Telescope": 0, "TRL": 0}
            for header, rows in runs:
                side, found = header["side"], evaluated(rows)
                colours = blues if side == "Telescope" else reds
                style = {
                    "color": colours[counts[side] % len(colours)],
                    "linestyle": "-" if side == "Telescope" else "--",
                }
                counts[side] += 1
                points = [row["seconds"] for row in found], [row[kind] for row in found]
                axis.plot(
                    *points, marker="o", markersize=3, linewidth=1.5, label=title(header), **style
                )
            axis.set(title=f"{kind} accuracy, held out", xlabel="seconds of training", ylim=(0, 1))
            axis.grid(alpha=0.3)
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            fontsize=8,
            loc="outside lower center",
            ncols=2,
            frameon=False,
        )
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--parallel", type=int, default=1, metavar="K", help="seeds at a time, on one device"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the recipe, for both sides",
    )
    parser.add_argument(
        "--fresh",
        type=int,
        default=1000,
        help="further problems that a finished run is tried on; default %(default)s",
    )
    parser.add_argument(
        "--try", dest="tried", type=Path, help=argparse.SUPPRESS
    )  # what a process of its own is asked for
    parser.add_argument("--no-trl", action="store_true")
    parser.add_argument(
        "--trl-args",
        action="append",
        metavar="ARGUMENTS",
        help="of _trl_arithmetic.py, one string; again: another run",
    )
    parser.add_argument("--trl-seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--trl-seconds", type=float, help="default: the median of the seeds' training seconds"
    )
    parser.add_argument("--trl-python", help="default: this one if it has trl, or else .venv-trl's")
    parser.add_argument(
        "--work", type=Path, help="where the runs are (default: a new temporary folder)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"where the results go (default: {OUT.relative_to(ROOT)}; "
        "with --quick: in the work folder)",
    )
    parser.add_argument("--again", action="store_true", help="run what has a result already, too")
    parser.add_argument(
        "--render",
        action="store_true",
        help="write README and picture from the files in --out, and nothing else",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tiny random model and 4 steps on the CPU: does the command work?",
    )
    args = parser.parse_args(argv)
    args.settings = dict(pair.split("=", 1) for pair in args.set)
    if not args.render:
        args.work = (args.work or Path(tempfile.mkdtemp(prefix="telescope-learn-"))).resolve()
    args.out = (args.out or (args.work / "results" if args.quick and args.work else OUT)).resolve()
    args.recipe = args.recipe.resolve()
    return args


if __name__ == "__main__":
    sys.path[:] = [
        str(ROOT),
        *(path for path in sys.path if Path(path or ".").resolve() != HERE),
    ]  # trl is not benchmarks/trl.py
    chosen = parse()
    if chosen.tried:
        print(json.dumps(try_fresh(chosen.tried, chosen.fresh)))
    elif chosen.render:
        render(chosen.out)
    elif not run(chosen):
        sys.exit("not all of it ended well: see above")
