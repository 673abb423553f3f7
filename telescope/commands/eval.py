"""telescope eval: the accuracy of a run's last checkpoint."""

from __future__ import annotations

from pathlib import Path

from telescope.commands.arguments import Parser, add_trust, parse_with_settings

USAGE = "telescope eval RUN [--trust] [--section.key value ...]"


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Evaluate the last checkpoint of RUN (a run folder, e.g. runs/arithmetic) on its held-out "
        "prompts. Settings may be changed for this evaluation, e.g. --eval.k 8; "
        "`telescope train --help` lists them.",
    )
    add_trust(parser)
    options, run_folder, settings = parse_with_settings(parser, arguments)
    if run_folder is None:
        parser.error("give a run folder")

    from rich.console import Console
    from rich.table import Table

    from telescope.run.evaluate import evaluate_saved
    from telescope.run.saved import open_run

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("metric")
    table.add_column("value", justify="right")
    saved = open_run(Path(run_folder), settings, trusted=options.trust)
    table.add_row("step", str(saved.step))
    for name, value in evaluate_saved(saved).metrics.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)
