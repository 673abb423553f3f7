"""telescope sweep: a run for every combination of settings, one after the other or on Ray."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from telescope.commands.arguments import Parser, Setting, parse_with_settings
from telescope.config import Config
from telescope.errors import TelescopeError

USAGE = "telescope sweep [RECIPE] [--ray] --section.key value,value,... [--section.key value ...]"
_INTERRUPTED = 130


@dataclass(frozen=True)
class Job:
    """One run of the sweep."""

    config: Config
    arguments: list[str]
    """Of `telescope train`."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "telescope", *self.arguments]

    @property
    def is_finished(self) -> bool:
        """Its last step has been saved. Raises if the folder holds a run with other settings."""
        from telescope.run.folder import checkpoints_folder, config_changes
        from telescope.run.manifest import list_checkpoints, step_of

        changed = [change for change in config_changes(self.config) if not _may_change(change)]
        if changed:
            raise TelescopeError(
                f"{self.config.run_dir} was started with other settings ({'; '.join(changed)}): "
                "set them back, or use another --name"
            )
        saved = list_checkpoints(checkpoints_folder(self.config))
        return bool(saved) and step_of(saved[-1]) >= self.config.steps


def _may_change(change: str) -> bool:
    """A sweep may go on to more steps. Logging and device do not change what is learnt."""
    return change.startswith(("steps:", "device:", "log."))


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Train RECIPE once for every combination of the given values, then compare the runs. "
        "The same command again skips finished runs and resumes the others. "
        "A comma separates values: --actor.lr 1e-6,3e-6 --seed 0,1,2 makes 6 runs. "
        "A list is one value if it stands in brackets, with its texts in quotes: "
        '--model.lora_targets \'["q_proj","v_proj"],["q_proj"]\'. '
        "So is a text with a comma if it stands in quotes: --eval.answer '\"a{1,2}\"'. "
        "`telescope train --help` lists the settings.",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="run as many at once as the Ray cluster has GPUs, or without GPUs CPUs "
        "(RAY_ADDRESS names it; default: one after the other)",
    )
    options, recipe, settings = parse_with_settings(parser, arguments)
    jobs = make_jobs(recipe, settings)
    folder = jobs[0].config.run_dir.parent
    waiting = [job for job in jobs if not job.is_finished]
    print(f"{len(jobs)} runs in {folder}, {len(jobs) - len(waiting)} of them finished", flush=True)
    failed = run_on_ray(waiting) if options.ray else run_here(waiting)

    from telescope.commands.compare import print_groups
    from telescope.viewer.compared import compare

    started = [job.config.run_dir for job in jobs if (job.config.run_dir / "config.toml").is_file()]
    if started:
        print_groups(compare(started))
    if failed:
        names = ", ".join(job.config.name for job in failed)
        raise TelescopeError(
            f"{len(failed)} of {len(jobs)} runs failed: {names}; their errors are above, "
            "and the same command tries them again"
        )


# ---- which runs ----


def make_jobs(recipe: str | None, settings: Sequence[Setting]) -> list[Job]:
    """A job for every combination. All settings are checked before the first run starts."""
    from telescope.commands.train import load_recipe

    values = [(key, split_values(key, text)) for key, text in settings]
    swept = [key for key, options in values if len(options) > 1]
    if not swept:
        raise TelescopeError("nothing to sweep: give a setting several values, e.g. --seed 0,1,2")
    if {"name", "dir"} & set(swept):
        raise TelescopeError("name and dir are the sweep's own: give one value")
    jobs = []
    for chosen in itertools.product(*[options for _, options in values]):
        own = [(key, value) for (key, _), value in zip(values, chosen, strict=True)]
        base = load_recipe(recipe, own)
        folder = f"{base.name}-sweep"
        name = "_".join(_label(key, value) for key, value in own if key in swept)
        own += [("dir", str(Path(base.dir) / folder)), ("name", name)]
        groups_runs = set(base.log.trackers) - {"tensorboard"}
        if groups_runs and base.log.group is None:
            own.append(("log.group", folder))
        arguments = ["train", *([] if recipe is None else [recipe]), "--resume"]
        arguments += [f"--{key}={value}" for key, value in own]
        jobs.append(Job(load_recipe(recipe, own), arguments))
    names = [job.config.name for job in jobs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TelescopeError(f"two runs of the sweep would be called {min(twice)}: leave one out")
    return jobs


def split_values(key: str, text: str) -> list[str]:
    """The values between the commas that stand outside brackets, braces and quotes."""
    values = [""]
    depth = 0
    quoted = False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0 and not quoted:
            values.append("")
        else:
            values[-1] += character
    values = [value.strip() for value in values]
    if "" in values:
        raise TelescopeError(f"--{key} {text}: a value is empty; write value,value")
    return [value[1:-1] if re.fullmatch('"[^"]*"', value) else value for value in values]


def _label(key: str, value: str) -> str:
    """A setting and its value as part of a folder's name."""
    return re.sub(r"[^\w.=+-]+", "-", f"{key}={value}")


# ---- running them ----


def run_here(jobs: Sequence[Job]) -> list[Job]:
    """Runs the jobs one after the other, each in a process of its own. Returns those that failed.

    Ctrl-C ends the sweep: the run that is going on saves its step first.
    """
    failed = []
    for number, job in enumerate(jobs, 1):
        print(f"\nrun {number} of {len(jobs)}: {job.config.name}", flush=True)
        code = _wait(subprocess.Popen(job.command))  # noqa: S603 -- our own command
        if code in (_INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
            raise KeyboardInterrupt
        if code:
            failed.append(job)
    return failed


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Waits for a run. A terminal sends Ctrl-C to it as well; SIGTERM is passed on."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: child.terminate()),
    }
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_on_ray(jobs: Sequence[Job]) -> list[Job]:
    """Runs the jobs on a Ray cluster, as many at once as it has room for.

    What a run prints goes to NAME.log beside its folder.
    """
    if not jobs:
        return []
    config = jobs[0].config
    if config.backend == "ray":
        raise TelescopeError(
            "backend = 'ray' gives the cluster to one run: leave out --ray, "
            "and the runs follow one another"
        )
    from telescope.scale.cluster import connect

    on_gpus = connect(config)
    import ray

    config.run_dir.parent.mkdir(parents=True, exist_ok=True)
    start: Callable[..., object] = ray.remote(num_gpus=int(on_gpus), num_cpus=1)(_run_logged).remote
    here = str(Path.cwd())
    running = {start(job.command, here, str(_log_of(job))): job for job in jobs}
    failed = []
    while running:
        (ready,), _ = ray.wait(list(running), num_returns=1)
        job = running.pop(ready)
        code = ray.get(ready)
        done = "finished" if code == 0 else f"failed, see {_log_of(job)}"
        print(f"{job.config.name}: {done}", flush=True)
        if code:
            failed.append(job)
    return failed


def _log_of(job: Job) -> Path:
    return job.config.run_dir.with_name(f"{job.config.run_dir.name}.log").absolute()


def _run_logged(command: list[str], folder: str, log: str) -> int:
    """Runs a command with its output in a file. Returns its exit code."""
    with Path(log).open("ab") as file:
        done = subprocess.run(  # noqa: S603 -- our own command
            command, cwd=folder, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    return done.returncode
