"""telescope train | plan | eval | explain | report | view | export. Imports torch only once the arguments are known to be right."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from telescope import __version__
from telescope.commands import explain as explain_command
from telescope.errors import TelescopeError

_TRAIN_USAGE = "telescope train [recipe.toml] [--resume | --smoke] [--section.key value ...]"
_EVAL_USAGE = "telescope eval RUN [--section.key value ...]"
_PLAN_USAGE = "telescope plan [recipe.toml] [--gpus 1,8,64] [--shape 7B] [--section.key value ...]"


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            _make_legible(stream)
    try:
        _run(arguments)
    except TelescopeError as error:
        print(f"telescope: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        hint = (
            "; if a checkpoint was written, --resume goes on from it"
            if arguments[:1] == ["train"]
            else ""
        )
        print(f"telescope: interrupted{hint}", file=sys.stderr)
        sys.exit(130)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        print(
            f"telescope: out of GPU memory ({str(error).splitlines()[0]}): lower *.micro_batch_tokens or rollout.batch_size",
            file=sys.stderr,
        )
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _make_legible(stream: io.TextIOWrapper) -> None:
    """UTF-8 for a stream whose encoding has no δ, ✓ or minus sign: no traceback, and no ? where a sign was."""
    try:
        "−δ✓".encode(stream.encoding)
    except (UnicodeEncodeError, LookupError):
        stream.reconfigure(encoding="utf-8")


def _run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="telescope", description="PPO post-training in which every token's credit can be seen."
    )
    parser.add_argument("--version", action="version", version=f"telescope {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("train", add_help=False, help=f"train a model: {_TRAIN_USAGE}")
    commands.add_parser(
        "plan",
        add_help=False,
        help=f"memory, network and time of a recipe on some GPUs: {_PLAN_USAGE}",
    )
    evaluation = commands.add_parser(
        "eval",
        usage=_EVAL_USAGE,
        help="accuracy of a run's last checkpoint on its held-out prompts; settings may be changed: --eval.k 8",
    )
    evaluation.add_argument("run", type=Path, help="run folder, e.g. runs/arithmetic")
    exporting = commands.add_parser(
        "export",
        help="write a run's last checkpoint as Hugging Face folders: the actor, and its critic in DIR/critic",
    )
    exporting.add_argument("run", type=Path, help="run folder")
    exporting.add_argument("dir", type=Path, metavar="DIR", help="new folder")
    exporting.add_argument(
        "--adapter",
        action="store_true",
        help="of a LoRA run the adapters alone, for peft; default: merged",
    )
    explaining = commands.add_parser(
        "explain", help="every number of a response, recomputed and explained"
    )
    explain_command.add_arguments(explaining)
    reporting = commands.add_parser(
        "report", help="one self-contained HTML file of a run, to open from disk"
    )
    reporting.add_argument("run", type=Path, help="run folder")
    reporting.add_argument(
        "-o", "--out", type=Path, help="the file (default: report.html in the run folder)"
    )
    viewing = commands.add_parser("view", help="the same page live, beside a running job")
    viewing.add_argument("run", type=Path, help="run folder")
    viewing.add_argument("--host", default="127.0.0.1", help="other than loopback needs --token")
    viewing.add_argument("--port", type=int, default=0, help="default: a free one")
    viewing.add_argument("--token", help="what a visitor has to give")
    if arguments[:1] == ["train"]:
        _train(arguments[1:])
        return
    if arguments[:1] == ["plan"]:
        _plan(arguments[1:])
        return
    chosen, rest = parser.parse_known_args(arguments)
    if rest and chosen.command != "eval":
        parser.parse_args(arguments)  # refuses them
    if chosen.command == "eval":
        _eval(chosen.run, rest)
    elif chosen.command == "explain":
        explain_command.run(chosen)
    elif chosen.command == "report":
        _report(chosen.run, chosen.out)
    elif chosen.command == "view":
        from telescope.viewer.server import serve

        serve(chosen.run, chosen.host, chosen.port, chosen.token)
    else:
        _export(chosen.run, chosen.dir, chosen.adapter)


def _train(arguments: list[str]) -> None:
    from telescope.config import BUILTIN_RECIPE, load_config, smoke

    if "--help" in arguments or "-h" in arguments:
        print(train_help())
        return
    small = "--smoke" in arguments
    recipe, overrides, resume = _parse(
        [argument for argument in arguments if argument != "--smoke"], _TRAIN_USAGE
    )
    if small and resume:
        raise TelescopeError(
            "--smoke begins anew in a folder of its own, so there is nothing to --resume: leave one of them out"
        )
    if recipe is None and not {"model.path", "data.files", "data.task"} & {
        key for key, _ in overrides
    }:
        recipe = BUILTIN_RECIPE
    config = load_config(recipe, overrides)
    if small:
        config = smoke(config)
        taken = [
            number
            for number in range(1, 1000)
            if (Path(config.dir) / f"{config.name}-{number}").exists()
        ]
        config = config.model_copy(update={"name": f"{config.name}-{max(taken, default=0) + 1}"})

    from telescope.run import startup as ahead

    with ahead.starting(config):
        from telescope.trainer import Interrupted, Trainer

    trainer = Trainer(config, resume=resume)
    try:
        trainer.fit()
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(130)
    if small:
        import shutil

        shutil.rmtree(trainer.checkpoints)  # of two steps nobody goes on, and they may be large
    report = None
    if config.ledger.samples != "off":
        from telescope.viewer.report import write_report

        report = write_report(config.run_dir, config.run_dir / "report.html")
    print(trainer.summary(report))


def _plan(arguments: list[str]) -> None:
    from telescope.scale import plan

    parser = argparse.ArgumentParser(prog="telescope plan", usage=_PLAN_USAGE, allow_abbrev=False)
    plan.add_arguments(parser)
    chosen, rest = parser.parse_known_args(arguments)
    recipe, overrides, resume = _parse(rest, _PLAN_USAGE)
    if resume:
        raise TelescopeError(f"a plan has nothing to --resume; usage: {_PLAN_USAGE}")
    print(plan.run(chosen, recipe, overrides))


def _parse(arguments: list[str], usage: str) -> tuple[Path | None, list[tuple[str, str]], bool]:
    from telescope.data.recipes import find_recipe

    recipe: Path | None = None
    overrides: list[tuple[str, str]] = []
    resume = False
    rest = iter(arguments)
    for argument in rest:
        if argument == "--resume":
            resume = True
        elif argument.startswith("--"):
            key, given, value = argument[2:].partition("=")
            if not given:
                following = next(rest, None)
                if following is None or following.startswith("--"):
                    raise TelescopeError(f"--{key} needs a value: --{key} VALUE")
                value = following
            overrides.append((key.replace("-", "_"), value))
        elif argument.startswith("-"):
            raise TelescopeError(f"unknown option {argument!r}; usage: {usage}")
        elif recipe is None:
            recipe = find_recipe(argument)
        else:
            raise TelescopeError(f"unexpected argument {argument!r}; usage: {usage}")
    return recipe, overrides, resume


def train_help() -> str:
    """Every setting with its type, default and meaning, by section."""
    from telescope.config import fields

    lines = [
        f"usage: {_TRAIN_USAGE}",
        "",
        "Trains on a recipe (TOML), with settings overridden one by one. Without a recipe: the built-in arithmetic job.",
        "",
        "  --resume    go on from the run's last checkpoint, if it has one",
        "  --smoke     2 steps of 8 prompts, in a folder of their own: does the recipe work here?",
        "",
    ]
    section = ""
    for key, kind, default, description in fields():
        if "." in key and key.split(".")[0] != section:
            section = key.split(".")[0]
            lines += ["", f"[{section}]"]
        lines += [
            f"  --{key} {kind} (default {'none' if default is None else default})",
            f"        {description}",
        ]
    return "\n".join(lines)


def _eval(run: Path, settings: list[str]) -> None:
    from telescope.run.export import evaluate_run

    unexpected, overrides, resume = _parse(settings, _EVAL_USAGE)
    if unexpected or resume:
        raise TelescopeError(f"eval takes a run and settings alone; usage: {_EVAL_USAGE}")
    for name, value in evaluate_run(run, overrides=overrides).items():
        print(f"{name:24} {value:.4f}")


def _report(run: Path, out: Path | None) -> None:
    from telescope.viewer.report import write_report

    print(write_report(run, out or run / "report.html"))


def _export(run: Path, folder: Path, adapter: bool) -> None:
    from telescope.run.export import export_run

    step = export_run(run, folder, adapter=adapter)
    if adapter:
        how = f"peft.PeftModel.from_pretrained(base, {str(folder)!r})"
        rest = (
            f"; {folder / 'critic'} has the critic's adapters and value head"
            if (folder / "critic").is_dir()
            else ""
        )
        print(f"exported step {step}: {how} is the actor{rest}")
        return
    if not (folder / "critic").is_dir():
        print(
            f"exported step {step}: {folder} loads with AutoModelForCausalLM; the run has no critic"
        )
        return
    architectures = json.loads((folder / "critic" / "config.json").read_text("utf-8"))[
        "architectures"
    ]
    token_classifier = any(name.endswith("ForTokenClassification") for name in architectures or [])
    how = (
        "AutoModelForTokenClassification"
        if token_classifier
        else "telescope.models.value.ValueModel (transformers has no class for it)"
    )
    print(
        f"exported step {step}: {folder} loads with AutoModelForCausalLM, {folder / 'critic'} with {how}"
    )
