"""telescope eval: the accuracy of runs, their checkpoints and models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from telescope.commands.arguments import (
    Parser,
    add_checkpoint,
    add_trust,
    parse_several,
    print_json,
)
from telescope.errors import TelescopeError

if TYPE_CHECKING:
    from telescope.run.targets import Measured

USAGE = (
    "telescope eval TARGET ... [--step N | --best] [--recipe RECIPE] [--json] "
    "[--completions FILE] [--trust] [--section.key value ...]"
)


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Evaluate each TARGET on held-out prompts: a run folder (its newest checkpoint), a "
        "checkpoint (runs/a/checkpoints/step_000040), an exported folder or a hub model. "
        "Settings may be changed for this evaluation, e.g. --eval.k 8; "
        "`telescope train --help` lists them.",
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--recipe",
        help="recipe or run whose data and reward measure models (default: the first run given)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list, an object each")
    parser.add_argument(
        "--completions",
        type=Path,
        metavar="FILE",
        help="write every answer of one TARGET to this parquet file",
    )
    add_trust(parser)
    options, targets, settings = parse_several(parser, arguments)
    if not targets:
        parser.error("give a run folder or a model")
    if options.completions and len(targets) > 1:
        parser.error("--completions is about one TARGET")

    from telescope.run.targets import evaluate_target, is_run

    runs = [target for target in targets if (Path(target) / "config.toml").is_file()]
    if options.recipe and all(is_run(target) for target in targets):
        parser.error("--recipe is for models: a run has its own data and reward")
    recipe = options.recipe or next(iter(runs), None)
    measured = []
    for target in targets:
        try:
            found = evaluate_target(
                target, settings, step=options.step, recipe=recipe, trusted=options.trust
            )
        except TelescopeError as error:
            raise TelescopeError(f"{target}: {error}" if len(targets) > 1 else error) from error
        measured.append(found)
    if options.completions:
        from telescope.ledger.completions import save_completions

        save_completions(measured[0].evaluation.completions, options.completions)
    if options.json:
        plain = [
            {"target": each.target, "step": each.step, "metrics": each.evaluation.metrics}
            for each in measured
        ]
        print_json(plain, indent=1)
    else:
        print_table(measured)
    guessed = [each.target for each in measured if each.on_builtin_data]
    if guessed and recipe is None:
        print(
            f"{', '.join(guessed)}: measured on the built-in prompts, such as 请问1+1=2？; "
            "--recipe names other data and its reward",
            file=sys.stderr,
        )


def print_table(measured: Sequence[Measured]) -> None:
    """One row per metric, one column per target."""
    from rich.console import Console
    from rich.table import Table

    from telescope.explain.text import visible

    table = Table(box=None, show_header=len(measured) > 1, pad_edge=False)
    table.add_column("")
    for each in measured:
        table.add_column(visible(each.target, spaces=False), justify="right", overflow="fold")
    table.add_row("step", *("–" if each.step is None else str(each.step) for each in measured))
    names = dict.fromkeys(name for each in measured for name in each.evaluation.metrics)
    for name in names:
        values = [each.evaluation.metrics.get(name) for each in measured]
        table.add_row(
            visible(name, spaces=False),
            *("–" if value is None else f"{value:.4f}" for value in values),
        )
    Console(markup=False, emoji=False).print(table)  # names from the data are shown as they are
