"""One recipe with one thing changed at a time, or two.

    python benchmarks/ablate.py            # one GPU
    python benchmarks/ablate.py --builtin  # the built-in job, on a CPU

The base is recipes/smollm2-arithmetic.toml as it stands; every other run changes what its name says
and nothing else. All have the same number of responses per step: where those of one prompt are
compared, a quarter of the prompts is asked four times. Learning rates are the base's, which were
chosen for it: what does as well as the base may do better with its own.

Runs are processes of their own, --parallel at a time, all of the first seed before the second. Each
adds a JSON object to docs/results/ablations/<job>.jsonl when it ends; those that are there already
are skipped, so a run that was cut short goes on. At the end, or with --render alone, README.md and
the picture there are drawn anew from all results; what stands in <job>.notes.md is written by hand,
and taken over.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from telescope import Config, Trainer
from telescope.algorithms import kl_penalty, masked_mean
from telescope.config import BUILTIN_RECIPE, CreditConfig, load_config
from telescope.credit import compute_advantages, credit_metrics
from telescope.data.seeds import mix_seed

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "ablations"
GROUP = 4  # responses of one prompt, where they are compared


@dataclass(frozen=True)
class Job:
    title: str
    recipe: Path
    steps: int
    target: float
    """Mean score whose first step is reported: half of the answers right, or what is late enough to
    tell runs apart.
    """
    settings: tuple[tuple[str, str], ...]
    """The same in all runs: what costs time and changes no result."""
    command: str


QUIET = (
    ("ledger.samples", "off"),
    ("checkpoint.every", "0"),
    ("eval.every", "0"),
    ("log.every", "100"),
)
JOBS = {
    "smollm2": Job(
        "SmolLM2-135M-Instruct adds and subtracts",
        ROOT / "recipes" / "smollm2-arithmetic.toml",
        steps=100,
        target=0.5,
        settings=(*QUIET, ("eval.samples", "500"), ("rollout.gpu_memory_utilization", "0.1")),
        command="python benchmarks/ablate.py",
    ),
    "builtin": Job(
        "The built-in job",
        BUILTIN_RECIPE,
        steps=100,
        target=0.9,
        settings=(*QUIET, ("device", "cpu")),
        command="python benchmarks/ablate.py --builtin",
    ),
}
RUNS: dict[
    str, dict[str, dict[str, str]]
] = {  # what is asked -> name of a run -> settings that differ from the base
    "λ": {"λ = 0": {"credit.lam": "0"}, "λ = 1": {"credit.lam": "1"}},
    "critic": {
        "no critic: reinforce++": {"credit.estimator": "reinforce++"},
        f"no critic: rloo, {GROUP} per prompt": {
            "credit.estimator": "rloo",
            "rollout.n": str(GROUP),
        },
    },
    "whitening and the entropy bonus": {
        "whitening off": {"credit.whiten": "false"},
        "no bonus": {"actor.entropy_coef": "0"},
        "no bonus, whitening off": {"actor.entropy_coef": "0", "credit.whiten": "false"},
        f"no bonus, no critic: rloo, {GROUP} per prompt": {
            "actor.entropy_coef": "0",
            "credit.estimator": "rloo",
            "rollout.n": str(GROUP),
        },
    },
    "KL in the reward": {
        "KL abs": {"credit.kl_kind": "abs"},
        "KL k2": {"credit.kl_kind": "k2"},
        "KL k3": {"credit.kl_kind": "k3"},
        "KL off": {"credit.kl_coef": "0"},
    },
    "value head": {
        "head normal": {"critic.head_init": "normal"},
        "head hl_gauss": {"critic.loss": "hl_gauss"},
        "head start of 10 steps": {"critic_warmup": "10"},
    },
}
BASE = "base"


def runs() -> dict[str, dict[str, str]]:
    """Name of a run -> settings that differ from the base."""
    return {
        BASE: {},
        **{
            name: settings
            for of_question in RUNS.values()
            for name, settings in of_question.items()
        },
    }


def config_of(job: Job, name: str, *, steps: int, seed: int, folder: str) -> Config:
    settings = dict(runs()[name])
    if "rollout.n" in settings:
        settings["rollout.batch_size"] = str(
            load_config(job.recipe).rollout.batch_size // int(settings["rollout.n"])
        )
    always = (("dir", folder), ("steps", str(steps)), ("seed", str(seed)))
    return load_config(job.recipe, [*job.settings, *always, *settings.items()])


class Unsaved(Trainer):
    """Without the checkpoint at the end: gigabytes that nobody reads."""

    def save(self) -> None:
        pass


def train(job: Job, name: str, *, steps: int, seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        began = time.perf_counter()
        trainer = Unsaved(config_of(job, name, steps=steps, seed=seed, folder=folder))
        trainer.fit()
        seconds, rows = time.perf_counter() - began, trainer.history()
        at_the_end = measure(trainer)
    scores = [row["reward/score_mean"] for row in rows if "reward/score_mean" in row]
    accuracy = {
        kind: [row[f"eval/{kind}_accuracy"] for row in rows if f"eval/{kind}_accuracy" in row]
        for kind in ("sampled", "greedy")
    }
    explained = [row["critic/explained_variance"] for row in rows if "critic/vf_loss" in row]
    return {
        "run": name,
        "seed": seed,
        "steps": steps,
        "seconds": round(seconds, 1),
        "date": str(datetime.date.today()),
        "machine": machine(trainer),
        **{kind: [found[0], found[-1]] for kind, found in accuracy.items()},
        **at_the_end,
        "explained": [round(value, 4) for value in tenths(explained)],
        "scores": [round(score, 4) for score in scores],
    }


def measure(trainer: Trainer) -> dict[str, float | None]:
    """Of one batch of held-out problems, by nearly one yardstick for all: the KL as k1, and how
    much V explains of the observed returns.

    `reward/kl` and `critic/explained_variance` are in each run's own kind of KL, and about its own
    targets.
    """
    config, roles, prompts = trainer.config, trainer.roles, trainer.held_out
    index = [i % len(prompts) for i in range(config.rollout.batch_size * config.rollout.n)]
    batch = roles.actor.generate_sequences(
        prompts.take(index, seed=mix_seed(config.seed, config.steps, 3))
    )
    batch = roles.reward.compute_reward(
        roles.reference.compute_log_prob(roles.critic.compute_values(batch))
    )
    kl = masked_mean(kl_penalty(batch["old_log_probs"], batch["ref_log_prob"], "k1"), batch.mask)
    observed = CreditConfig.of(estimator="monte_carlo", kl_kind=config.credit.kl_kind)
    credited = compute_advantages(batch, observed, kl_coef=trainer.kl_coef)
    explained = credit_metrics(credited, observed)["critic/explained_variance"]
    return {
        "kl": round(float(kl), 5),
        "explained_observed": round(explained, 4) if config.credit.by_critic else None,
    }


def machine(trainer: Trainer) -> str:
    import torch

    if trainer.roles.actor.device.type == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{os.cpu_count()}-core CPU, {'one thread' if threads == 1 else f'{threads} threads'}"


def tenths(numbers: list[float], parts: int = 10) -> list[float]:
    """Means of ten equal stretches, or of each number where there are fewer."""
    bounds = [round(i * len(numbers) / parts) for i in range(parts + 1)]
    return [statistics.fmean(numbers[a:b]) for a, b in itertools.pairwise(bounds) if b > a]


def reached(scores: list[float], target: float, over: int = 5) -> int | None:
    """First step at which the mean score of the last five is the target; none: never."""
    steps = (
        step
        for step in range(over, len(scores) + 1)
        if statistics.fmean(scores[step - over : step]) >= target
    )
    return next(steps, None)


# ---- all runs


def read(path: Path) -> list[dict]:
    return (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    )


def run_all(name: str, chosen: argparse.Namespace, out: Path) -> bool:
    """Starts what is not there yet; whether all went well."""
    done = {(row["run"], row["seed"], row["steps"]) for row in read(out)}
    wanted = [run for run in runs() if not chosen.only or any(word in run for word in chosen.only)]
    waiting = [
        (run, seed)
        for seed in range(chosen.seeds)
        for run in wanted
        if (run, seed, chosen.steps) not in done
    ]
    began = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)

    def one(run_and_seed: tuple[str, int]) -> bool:
        run, seed = run_and_seed
        if chosen.budget is not None and time.monotonic() - began > 60 * chosen.budget:
            return say(f"{run}, seed {seed}: not started, {chosen.budget:g} minutes are over")
        threads = "1" if chosen.builtin else str(max((os.cpu_count() or 1) // chosen.parallel, 1))
        command = [
            sys.executable,
            __file__,
            "--one",
            run,
            "--seed",
            str(seed),
            "--steps",
            str(chosen.steps),
        ]
        environment = {"OMP_NUM_THREADS": threads, **os.environ}
        ended = subprocess.run(
            [*command, *(["--builtin"] if chosen.builtin else [])],
            env=environment,
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            return say(f"{run}, seed {seed}: failed\n{ended.stderr[-2000:]}")
        row = json.loads(ended.stdout.splitlines()[-1])
        with out.open("a", encoding="utf-8") as file:  # one short write at a time: whole lines
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        end = tenths(row["scores"])[-1]
        say(
            f"{run}, seed {seed}: score {end:.3f}, sampled {row['sampled'][1]:.3f}, "
            f"{row['seconds']:.0f} s"
        )
        return True

    with ThreadPoolExecutor(chosen.parallel) as pool:
        return all(list(pool.map(one, waiting)))


def say(text: str) -> bool:
    print(text, file=sys.stderr, flush=True)
    return False


# ---- the page


def spread(values: list[float | None], form: str = ".3f") -> str:
    """Mean over seeds, smallest to largest."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):{form}}"
    return mean if len(known) == 1 else f"{mean} ({min(known):{form}} to {max(known):{form}})"


def steps_to(rows: list[dict], target: float) -> str:
    steps = [reached(row["scores"], target) for row in rows]
    never = steps.count(None)
    if never == len(steps):
        return "never"
    return spread(steps, ".0f") + (f", {never} of {len(steps)} never" if never else "")


def table(rows: list[dict], target: float) -> list[str]:
    columns = [
        "run",
        "held-out accuracy, sampled",
        "greedy",
        f"steps to a score of {target:g}",
        "mean score, by tenths of the run",
    ]
    columns += [
        "KL to the reference at the end",
        "critic explains: own targets, first → last tenth",
        "what was observed, at the end",
        "seconds",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name in runs():
        found = [row for row in rows if row["run"] == name]
        if not found:
            continue
        curve = [
            statistics.fmean(of_seeds)
            for of_seeds in zip(*(tenths(row["scores"]) for row in found), strict=True)
        ]
        first, last = (
            [row["explained"][i] if row["explained"] else None for row in found] for i in (0, -1)
        )
        cells = [
            name,
            spread([row["sampled"][1] for row in found]),
            spread([row["greedy"][1] for row in found]),
            steps_to(found, target),
        ]
        cells += [" ".join(f"{score:.2f}" for score in curve), spread([row["kl"] for row in found])]
        cells += ["–" if first[0] is None else f"{spread(first, '.2f')} → {spread(last, '.2f')}"]
        cells += [
            spread([row["explained_observed"] for row in found], ".2f"),
            spread([row["seconds"] for row in found], ".0f"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(rows: list[dict], path: Path) -> None:
    """Mean score over the run, a panel for each question, the base grey in all of them.

    Seeds are lines of one colour.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "telescope", "svg.fonttype": "none", "font.size": 8}
    )
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(RUNS), figsize=(3 * len(RUNS), 2.6), sharey=True)
    for panel, (question, of_question) in zip(panels, RUNS.items(), strict=True):
        for colour, name in enumerate([BASE, *of_question]):
            for number, row in enumerate(row for row in rows if row["run"] == name):
                points = tenths(row["scores"], 40)
                steps = [(i + 1) * len(row["scores"]) / len(points) for i in range(len(points))]
                style = {
                    "color": "0.6" if name == BASE else f"C{colour - 1}",
                    "linewidth": 2 if name == BASE else 1,
                }
                panel.plot(steps, points, label=name if number == 0 else None, **style)
        panel.set_title(question)
        panel.set_xlabel("step")
        if panel.has_data():
            panel.legend(loc="best", frameon=False, fontsize=6)
    panels[0].set_ylabel("mean score")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def section(name: str, folder: Path) -> list[str]:
    """The page's part about one job; empty where nothing was measured."""
    job, every = JOBS[name], read(folder / f"{name}.jsonl")
    steps = max((row["steps"] for row in every), default=0)
    rows = [row for row in every if row["steps"] == steps]
    if not rows:
        return []
    draw(rows, folder / f"{name}.svg")
    base, seeds = load_config(job.recipe, job.settings), sorted({row["seed"] for row in rows})
    before = " and ".join(
        f"{statistics.fmean(row[kind][0] for row in rows):.3f} {kind}"
        for kind in ("sampled", "greedy")
    )
    dates = sorted({row["date"] for row in rows})
    given = (f" --steps {steps}" if steps != job.steps else "") + (
        f" --seeds {len(seeds)}" if len(seeds) != 2 else ""
    )
    lines = [
        f"## {job.title}",
        "",
        f"`{job.command}{given}`: {job.recipe.name}, {steps} steps of "
        f"{base.rollout.batch_size * base.rollout.n} responses, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}; "
        f"{', '.join(sorted({row['machine'] for row in rows}))}; "
        f"{' to '.join(sorted({dates[0], dates[-1]}))}. Before training: {before}.",
        f"Base: λ = 0.95, a critic, whitening, KL k1 with β = {base.credit.kl_coef:g}, an entropy "
        f"bonus of {base.actor.entropy_coef:g}, "
        "a value head of zeros, no head start.",
        "",
        *table(rows, job.target),
        "",
        f"![mean score over the run]({name}.svg)",
        "",
    ]
    notes = folder / f"{name}.notes.md"
    return lines + ([notes.read_text("utf-8").strip(), ""] if notes.exists() else [])


def render(folder: Path) -> None:
    sections = [line for name in JOBS for line in section(name, folder)]
    top = [
        "# Ablations: one thing changed at a time",
        "",
        "Written by `python benchmarks/ablate.py --render` from the jsonl files beside it, which "
        "hold every run; the paragraphs below the "
        "pictures are written by hand.",
        "Where there are several seeds, a cell is their mean (smallest to largest). A step's score "
        "is the mean over its responses, and the "
        "steps to a score are those until the mean of five steps reaches it. The KL is k1 per "
        "token in all rows, at the end, on held-out "
        "problems. «Critic explains» is 1 − Var(R − V)/Var(R): of the run's own targets during "
        "training (`critic/explained_variance`; for "
        "λ < 1 they contain V), and of the observed returns (λ = 1) of held-out problems at the "
        "end, which is nearly one yardstick for "
        "all (the KL term in them is the run's own). "
        "Seconds are of runs that shared their machine with others.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(top + sections), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--builtin",
        action="store_true",
        help="the built-in job on a CPU, one thread each, instead of the recipe on a GPU",
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="runs whose name has one of these words in it"
    )
    parser.add_argument("--steps", type=int, help="of each run; default 100")
    parser.add_argument(
        "--seeds",
        type=int,
        default=2,
        help="0, 1, … so many; default 2, which shows how large the noise is",
    )
    parser.add_argument("--parallel", type=int, help="runs at a time; default 4, with --builtin 1")
    parser.add_argument("--budget", type=float, help="minutes after which no run is started")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the results and the page"
    )
    parser.add_argument(
        "--render", action="store_true", help="only draw the page from what is there"
    )
    for hidden, kind in (("--one", str), ("--seed", int)):  # what a process of its own is asked for
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    name = "builtin" if chosen.builtin else "smollm2"
    chosen.steps, chosen.parallel = (
        chosen.steps or JOBS[name].steps,
        chosen.parallel or (1 if chosen.builtin else 4),
    )
    if chosen.one:
        print(json.dumps(train(JOBS[name], chosen.one, steps=chosen.steps, seed=chosen.seed)))
        return
    well = chosen.render or run_all(name, chosen, chosen.out / f"{name}.jsonl")
    render(chosen.out)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
