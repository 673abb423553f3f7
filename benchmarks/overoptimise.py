"""A reward model, and what happens when PPO trusts it too much.

    python benchmarks/overoptimise.py

1. Pairs: responses of the start policy to training problems, and written ones (the right number,
   near misses). The task's own scorer says which of two is preferred. There are thousands of pairs,
   and still the reward model is imperfect.
2. A reward model: the policy's backbone with one output, trained by −log σ(r_w − r_l). Its scores
   are scaled so that those of the start policy's responses have a standard deviation of 1.
3. PPO against it alone, once for each β (credit.kl_coef), on problems that no pair was about. The
   task's own score is measured with weight 0. Runs share the GPU, --parallel at a time.
4. --out gets curves.json, picture.svg and README.md, written again after every run that ends.
--render draws them from curves.json alone.

Settings of `telescope train` may follow: --actor.lr 2e-5. For the model and the task see --recipe
(extras smollm and gym). Pairs and reward model are kept in --work, and taken from there where they
were made with the same settings.
"""

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from _overoptimise_page import render

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("_overoptimise_worker.py")
CURVES = {  # ours -> the metric
    "rm_score": "reward/model",
    "true_accuracy": "reward/right",
    "true_score": "reward/gym_score",
    "length": "response/length_mean",
    "entropy": "actor/entropy",
}
# steps of the critic alone: it has to learn the reward model's scale, and they show where the
# policy starts
HEAD_START = 5
NAMES = {"smollm2": "SmolLM2-135M-Instruct"}
SMOKE = {
    "steps": 4,
    "pairs": 24,
    "held_out_pairs": 8,
    "batch": 8,
    "betas": [0.1, 0.0],
    "parallel": 1,
}


# ---- running


def make_job(chosen: argparse.Namespace, settings: list[tuple[str, str]]) -> dict[str, Any]:
    """What the workers need to know."""
    defaults = {
        "steps": str(chosen.steps),
        "seed": str(chosen.seed),
        "data.size": "8000",
        "critic.clip_value": "none",
        "critic_warmup": str(HEAD_START),
        "reward.micro_batch_tokens": "65536",
        "rollout.gpu_memory_utilization": f"{0.6 / chosen.parallel:.3f}",
        "ledger.samples": "64",
        "ledger.every": "5",
        "log.every": "10",
        "rollout.batch_size": "512",
        "actor.lr": "1e-4",
        "critic.lr": "1e-4",
        "actor.minibatches": "2",
        "critic.minibatches": "2",
    }
    if chosen.smoke:
        defaults |= {
            "model.dtype": "float32",
            "data.size": "32",
            "rollout.batch_size": "16",
            "rollout.max_response_tokens": "8",
            "critic_warmup": "1",
            "ledger.every": "1",
            "device": "cpu",
        }
    work = chosen.work.resolve()
    return {
        "recipe": str(chosen.recipe.resolve()),
        "settings": list((defaults | dict(settings)).items()),
        "seed": chosen.seed,
        "tiny": str(work / "tiny") if chosen.smoke else None,
        "reward_model": str(work / "reward-model"),
        "reward_file": str(work / "reward-model.json"),
        "runs": str(work / "runs"),
        "pairs": chosen.pairs,
        "held_out_pairs": chosen.held_out_pairs,
        "samples": chosen.samples,
        "epochs": chosen.epochs,
        "lr": chosen.rm_lr,
        "batch": chosen.batch,
    }


def start(
    job: dict[str, Any], job_file: Path, log: Path, *arguments: str, parallel: int = 1
) -> subprocess.Popen:
    threads = str(max((os.cpu_count() or 1) // parallel, 1))
    path = os.pathsep.join(str(p) for p in (ROOT, os.environ.get("PYTHONPATH")) if p)
    environment = {
        "OMP_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        "PYTHONPATH": path,
    }
    command = [
        sys.executable,
        "-P",
        str(WORKER),
        arguments[0],
        str(job_file),
        *arguments[1:],
    ]  # -P: benchmarks/trl.py is not TRL
    with log.open("w") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
        )


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(
        f"  | {line}" for line in log.read_text("utf-8", errors="replace").splitlines()[-lines:]
    )


def end(process: subprocess.Popen, patience: float = 60.0) -> None:
    """Asks the process to stop after its step; ends it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.kill()
        process.wait()


def reward_model(job: dict[str, Any], work: Path, deadline: float) -> dict[str, Any]:
    """Trains it, unless it is there with the same settings."""
    of_policy = (
        "steps",
        "credit.",
        "critic.",
        "actor.",
        "ledger.",
        "log.",
        "rollout.gpu_memory_utilization",
        "reward.",
    )
    same = {
        **{k: v for k, v in job.items() if k != "settings"},
        "settings": [s for s in job["settings"] if not s[0].startswith(of_policy)],
    }
    made_with, result = work / "reward-model-job.json", Path(job["reward_file"])
    if (
        result.is_file()
        and made_with.is_file()
        and json.loads(made_with.read_text("utf-8")) == json.loads(json.dumps(same))
    ):
        print(f"reward model: the one in {work}", flush=True)
        return json.loads(result.read_text("utf-8"))
    result.unlink(missing_ok=True)
    log, shown = work / "reward-model.log", 0
    process = start(job, work / "job.json", log, "reward")
    try:
        while True:
            code = process.poll()
            lines = log.read_text("utf-8", errors="replace").splitlines()
            for line in lines[shown:]:
                if line.startswith(("pairs:", "reward model:")):
                    print(line, flush=True)
            shown = len(lines)
            if code is not None:
                break
            if time.monotonic() > deadline:
                sys.exit(f"no time left while the reward model was made; {log}:\n{tail(log)}")
            time.sleep(0.5)
    finally:
        end(process, patience=5)
    if process.returncode or not result.is_file():
        sys.exit(
            f"the reward model was not made (exit code {process.returncode}); "
            f"{log}:\n{tail(log, 40)}"
        )
    made_with.write_text(json.dumps(same), "utf-8")
    return json.loads(result.read_text("utf-8"))


def policies(
    job: dict[str, Any], work: Path, betas: list[float], parallel: int, deadline: float, keep: Any
) -> bool:
    """A PPO run for each β, at most `parallel` at once; `keep` is called after each.

    Whether all of them ended well.
    """
    waiting, running, well, said = list(betas), {}, True, time.monotonic()
    try:
        while waiting or running:
            late = time.monotonic() > deadline
            if late and waiting:
                print(
                    f"no time left: β = {', '.join(f'{beta:g}' for beta in waiting)} not begun",
                    flush=True,
                )
                waiting, well = [], False
            while waiting and len(running) < parallel:
                beta = waiting.pop(0)
                (run_folder(job, beta) / "metrics.jsonl").unlink(missing_ok=True)
                running[beta] = start(
                    job,
                    work / "job.json",
                    work / f"beta-{beta:g}.log",
                    "policy",
                    repr(beta),
                    parallel=parallel,
                )
                print(f"β {beta:g}: begun", flush=True)
            if late:
                print("no time left: the runs stop after this step", flush=True)
                for process in running.values():
                    if process.poll() is None:
                        process.send_signal(
                            signal.SIGTERM
                        )  # all at once, so that they stop at about the same step
                for process in running.values():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(60)
                    end(process, patience=0)
            for beta, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[beta]
                print(
                    f"β {beta:g}: {progress(job, beta)}"
                    + (f", exit code {process.returncode}" if process.returncode else ""),
                    flush=True,
                )
                if process.returncode:
                    well = False
                    print(tail(work / f"beta-{beta:g}.log"), flush=True)
                keep()
            if running and time.monotonic() - said > 15:
                said = time.monotonic()
                for beta in running:
                    print(f"β {beta:g}: {progress(job, beta)}", flush=True)
            time.sleep(0.5)
    finally:
        for process in running.values():
            end(process, patience=5)
    return well


def run_folder(job: dict[str, Any], beta: float) -> Path:
    return Path(job["runs"]) / f"beta-{beta:g}"


def curve(job: dict[str, Any], beta: float) -> dict[str, Any] | None:
    """What a run has measured so far: step 1, 2, … of each curve.

    KL per response is the mean over tokens times the mean length.
    """
    folder = run_folder(job, beta)
    metrics, shown = folder / "metrics.jsonl", folder / "examples.json"
    rows = (
        [json.loads(line) for line in metrics.read_text("utf-8").splitlines() if line.endswith("}")]
        if metrics.is_file()
        else []
    )
    needed = (
        "reward/model",
        "reward/right",
        "reward/kl",
        "response/length_mean",
    )  # a number that is not finite is null
    rows = [row for row in rows if all(row.get(name) is not None for name in needed)]
    if not rows:
        return None
    curves = {ours: [_rounded(row.get(name)) for row in rows] for ours, name in CURVES.items()}
    kl = [_rounded(row["reward/kl"] * row["response/length_mean"]) for row in rows]
    found = json.loads(shown.read_text("utf-8")) if shown.is_file() else []
    return {
        "beta": beta,
        "step": [row["step"] for row in rows],
        **curves,
        "kl": kl,
        "examples": found,
    }


def progress(job: dict[str, Any], beta: float) -> str:
    run = curve(job, beta)
    if run is None:
        return "no step yet"
    return (
        f"step {run['step'][-1]}  RM score {run['rm_score'][-1]:.3f}  true accuracy "
        f"{run['true_accuracy'][-1]:.3f}  "
        f"KL {run['kl'][-1]:.2f}  length {run['length'][-1]:.1f}"
    )


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.5g}")


def write_curves(out: Path, about: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """curves.json: a line for each run, and for what is known of all of them."""
    lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in about.items()]
    each = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    temporary = out / ".curves.json.tmp"
    temporary.write_text("{\n" + ",\n".join(lines) + f',\n"runs": [\n{each}\n]\n}}\n', "utf-8")
    temporary.replace(out / "curves.json")


# ---- the command


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--betas", type=float, nargs="+", default=[0.3, 0.1, 0.03, 0.01, 0.0])
    parser.add_argument("--steps", type=int, default=120, help="PPO steps of each run")
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="then runs stop after their step, and what they have is shown",
    )
    parser.add_argument("--parallel", type=int, default=5, help="runs that share the GPU")
    parser.add_argument("--pairs", type=int, default=5000, help="to train the reward model on")
    parser.add_argument("--held-out-pairs", type=int, default=400)
    parser.add_argument(
        "--samples",
        type=int,
        default=4,
        help="responses of the start policy to each problem of a pair",
    )
    parser.add_argument("--epochs", type=int, default=3, help="of the reward model")
    parser.add_argument("--rm-lr", type=float, default=5e-5, help="its learning rate")
    parser.add_argument("--batch", type=int, default=32, help="its pairs per update")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "smollm2-arithmetic.toml")
    parser.add_argument(
        "--work", type=Path, help="reward model, runs and logs; default: runs/overoptimise"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="default: docs/results/over-optimisation, with --smoke a folder in --work",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="draw picture and README from --out's curves.json, nothing else",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="a tiny random model and a few steps, on the CPU: does it run?",
    )
    chosen, rest = parser.parse_known_args(arguments)
    keys, values = rest[::2], rest[1::2]
    if len(keys) != len(values) or not all(key.startswith("--") and "." in key for key in keys):
        parser.error(
            f"unknown arguments: {shlex.join(rest)}; settings of a run are given as --section.key "
            "value"
        )
    if chosen.smoke:
        for name, value in SMOKE.items():
            if f"--{name.replace('_', '-')}" not in arguments:
                setattr(chosen, name, value)
    folder = "overoptimise-smoke" if chosen.smoke else "overoptimise"
    chosen.work = chosen.work or ROOT / "runs" / folder
    chosen.out = chosen.out or (
        chosen.work / "results" if chosen.smoke else ROOT / "docs" / "results" / "over-optimisation"
    )
    return chosen, [(key[2:], value) for key, value in zip(keys, values, strict=True)]


def command_line(arguments: list[str]) -> str:
    """How this was called, without the folders."""
    kept, skip = [], False
    for argument in arguments:
        if (
            not skip
            and argument not in ("--out", "--work")
            and not argument.startswith(("--out=", "--work="))
        ):
            kept.append(argument)
        skip = argument in ("--out", "--work")
    return shlex.join(["python", "benchmarks/overoptimise.py", *kept])


def main() -> None:
    chosen, settings = parse(sys.argv[1:])
    if chosen.render:
        render(chosen.out)
        print(chosen.out / "README.md")
        return
    if importlib.util.find_spec("matplotlib") is None:
        print(
            "no matplotlib (extra gym): there will be numbers and no picture; --render draws it "
            "later",
            flush=True,
        )
    began = time.monotonic()
    deadline = began + 60 * chosen.minutes
    for folder in (chosen.work, chosen.out):
        folder.mkdir(parents=True, exist_ok=True)
    job = make_job(chosen, settings)
    (chosen.work / "job.json").write_text(json.dumps(job, indent=1), "utf-8")
    made = reward_model(job, chosen.work, deadline)
    from telescope.config import load_config

    config = load_config(chosen.recipe, job["settings"])
    recipe = chosen.recipe.resolve()
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": made["machine"],
        "versions": made["versions"],
        "command": command_line(sys.argv[1:]),
        "smoke": chosen.smoke,
        "model": "A tiny random Llama"
        if chosen.smoke
        else NAMES.get(config.model.path, config.model.path),
        "recipe": str(recipe.relative_to(ROOT)) if recipe.is_relative_to(ROOT) else recipe.name,
        "seed": chosen.seed,
        "settings": job["settings"],
        "batch_size": config.rollout.batch_size * config.rollout.n,
        "head_start": config.critic_warmup,
        "steps": config.steps,
        "reward_model": made,
    }

    def keep() -> None:
        runs = [run for beta in chosen.betas if (run := curve(job, beta)) is not None]
        if runs:
            write_curves(
                chosen.out, {**about, "minutes": round((time.monotonic() - began) / 60, 2)}, runs
            )
            try:
                render(chosen.out)
            except Exception:  # a picture that cannot be drawn must not end the runs
                traceback.print_exc()

    for beta in chosen.betas:  # what an earlier command left
        for name in ("metrics.jsonl", "examples.json"):
            (run_folder(job, beta) / name).unlink(missing_ok=True)
    well = policies(job, chosen.work, chosen.betas, chosen.parallel, deadline, keep)
    if not any(curve(job, beta) for beta in chosen.betas):
        sys.exit(f"no run has measured anything: see the logs in {chosen.work}")
    print((chosen.out / "README.md").read_text("utf-8"))
    print(f"{(time.monotonic() - began) / 60:.1f} minutes: {chosen.out / 'README.md'}", flush=True)
    if not well:
        sys.exit(1)


if __name__ == "__main__":
    main()
