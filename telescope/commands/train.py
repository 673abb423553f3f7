"""telescope train: train on a recipe, with settings overridden one by one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from telescope.commands.arguments import Parser, Setting, parse_with_settings
from telescope.errors import TelescopeError

if TYPE_CHECKING:
    from telescope.config import Config

USAGE = (
    "telescope train [RECIPE] [--resume | --resume-from STEP | --smoke | --dry-run] "
    "[--stop-on ID[,ID]] [--section.key value ...]"
)
_DIAGNOSED = 3
"""Exit code of a run that --stop-on ended."""
_WHAT_TO_TRAIN = {"model.path", "data.files", "data.task"}


class _TrainParser(Parser):
    def format_help(self) -> str:
        """The options, then every setting by section."""
        return f"{super().format_help()}\n{settings_help()}\n"


def run(arguments: list[str]) -> None:
    parser = _TrainParser(
        USAGE,
        "Train on RECIPE: a TOML file, or the name of a shipped recipe. "
        "Settings on the command line override those of the recipe. "
        "Without a recipe: the built-in arithmetic job.",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the run's last checkpoint, if any"
    )
    parser.add_argument(
        "--resume-from",
        metavar="STEP",
        help="continue from this checkpoint, e.g. step_000040; newer ones are set aside",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="2 steps of 8 prompts, in a folder of their own, to see whether the recipe works here",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="train nothing: show the plan, the memory and the first prompts as the model "
        "reads them",
    )
    parser.add_argument(
        "--stop-on",
        metavar="ID",
        help="findings of the doctor that end the run after a checkpoint, e.g. collapse,kl_runaway",
    )
    options, recipe, settings = parse_with_settings(parser, arguments)
    if options.stop_on:
        settings.append(("doctor.stop_on", options.stop_on))
    if options.smoke and (options.resume or options.resume_from):
        raise TelescopeError(
            "--smoke starts a new run in a folder of its own, so there is nothing to --resume: "
            "leave one of them out"
        )
    config = load_recipe(recipe, settings, smoke_run=options.smoke)
    if options.dry_run:
        from telescope.run.dry_run import dry_run

        print(dry_run(config))
        return

    from telescope.run.startup import preload

    with preload(config):
        from telescope.run.lifecycle import Diagnosed, Interrupted
        from telescope.trainer import Trainer

    try:
        trainer = Trainer(config, resume=options.resume_from or options.resume)
        trainer.fit()
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(_DIAGNOSED if isinstance(stopped, Diagnosed) else 130)
    if options.smoke:
        # A smoke run is never resumed, and weights may be large.
        shutil.rmtree(trainer.checkpoints)
        shutil.rmtree(config.run_dir / "warm_start", ignore_errors=True)
    report = None
    if config.ledger.samples != "off":
        from telescope.viewer.report import write_report

        report = write_report(config.run_dir, config.run_dir / "report.html")
    print(trainer.summary(report))


def load_recipe(
    recipe: str | None, settings: Sequence[Setting], *, smoke_run: bool = False
) -> Config:
    """The config of a recipe and settings; without both, that of the built-in job."""
    from telescope.config import BUILTIN_RECIPE, load_config, smoke

    built_in = recipe is None and not any(key in _WHAT_TO_TRAIN for key, _ in settings)
    config = load_config(BUILTIN_RECIPE if built_in else recipe, settings)
    if not smoke_run:
        return config
    config = smoke(config)
    return config.model_copy(update={"name": _numbered(Path(config.dir), config.name)})


def _numbered(folder: Path, name: str) -> str:
    """`name` with a number that no earlier run in `folder` has."""
    taken = [number for number in range(1, 1000) if (folder / f"{name}-{number}").exists()]
    return f"{name}-{max(taken, default=0) + 1}"


def settings_help() -> str:
    """Every setting with its type, default and meaning, by section."""
    from telescope.config import fields

    lines = ["settings:"]
    section = ""
    for key, kind, default, description in fields():
        first, dot, _ = key.partition(".")
        if dot and first != section:
            section = first
            lines += ["", f"[{section}]"]
        shown = "none" if default is None else default
        lines += [f"  --{key} {kind} (default {shown})", f"        {description}"]
    return "\n".join(lines)
