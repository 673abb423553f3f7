"""telescope compare: the results of several runs, beside the settings in which they differ."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from telescope.commands.arguments import Parser, print_json
from telescope.commands.language import tell
from telescope.explain.text import visible

if TYPE_CHECKING:
    from telescope.viewer.compared import Group

USAGE = "telescope compare RUN... [--metric NAME[:min] ...] [--json]"
_MOST_BESIDE = 4
"""With more differing settings than this, they get a table of their own."""


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Compare runs: the settings in which they differ, and the final and best value of metrics. "
        "Runs that differ only in the seed are one row: mean ± standard deviation.",
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folder, or a folder of runs"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="metric to compare, e.g. critic/vf_loss:min (:min: less is better); may be repeated "
        "(default: held-out accuracy and reward/score_mean)",
    )
    parser.add_argument("--json", action="store_true", help="print the groups as JSON")
    options = parser.parse_args(arguments)

    from telescope.ledger.lines import damage_of
    from telescope.viewer.compared import compare
    from telescope.viewer.runs import Runs

    for folder in options.runs:
        for run in Runs(folder).found():
            tell(*damage_of(run.run))
    groups = compare(options.runs, options.metric)
    if options.json:
        print_json([group.to_json() for group in groups], indent=1)
    else:
        print_groups(groups)


def print_groups(groups: Sequence[Group]) -> None:
    """Prints a row per group; differing settings stand in it, or in a table of their own."""
    from rich.console import Console
    from rich.table import Table

    from telescope.viewer.compared import digits

    # Text of the runs is shown as it is: rich would read [a-z] as a style and :key: as a picture.
    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    settings = list(dict.fromkeys(key for group in groups for key in group.settings))
    metrics = list(dict.fromkeys(name for group in groups for name in group.results))
    beside = settings if len(settings) <= _MOST_BESIDE else []
    table = Table(box=None, pad_edge=False)
    for name in ("", "run", "steps"):
        table.add_column(name, overflow="fold")
    for key in beside:
        table.add_column(visible(key, spaces=False), overflow="fold")
    for name in metrics:
        table.add_column(f"{visible(name, spaces=False)}\nfinal", justify="right")
        table.add_column("\nbest", justify="right")
    for number, group in enumerate(groups, 1):
        cells = [str(number), _runs(group), _steps(group)]
        cells += [_shown(group, key) for key in beside]
        for name in metrics:
            result = group.results.get(name)
            cells.append(digits(result.final if result else None))
            cells.append(digits(result.best if result else None))
        table.add_row(*cells)
    console.print(table)
    if settings and not beside:
        own = Table("setting", "value", "in", box=None, pad_edge=False)
        for key in settings:
            where: dict[str, list[str]] = {}
            for number, group in enumerate(groups, 1):
                where.setdefault(_shown(group, key), []).append(str(number))
            names = [visible(key, spaces=False), *[""] * (len(where) - 1)]
            for name, (value, numbers) in zip(names, where.items(), strict=True):
                own.add_row(name, value, ", ".join(numbers))
        console.print()
        console.print(own)


def _runs(group: Group) -> str:
    if len(group.runs) == 1:
        return visible(group.runs[0], spaces=False)
    seeds = ", ".join(map(str, sorted(group.seeds)))
    return f"{len(group.runs)} runs, seeds {seeds}"


def _steps(group: Group) -> str:
    first, last = min(group.steps), max(group.steps)
    return str(first) if first == last else f"{first}–{last}"


def _shown(group: Group, key: str) -> str:
    return visible(str(group.settings[key]), spaces=False) if key in group.settings else "–"
