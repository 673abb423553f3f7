"""telescope report: the page of a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

from telescope.commands.arguments import Parser
from telescope.commands.language import tell

USAGE = "telescope report RUN [-o FILE]"


def run(arguments: list[str]) -> None:
    parser = Parser(USAGE, "Write one self-contained HTML file of a run, to open from disk.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="the file (default: report.html in the run folder)",
    )
    options = parser.parse_args(arguments)

    from telescope.ledger.damage import run_damage
    from telescope.viewer.report import write_report

    tell(*run_damage(options.run))
    print(write_report(options.run, options.out or options.run / "report.html"))
