"""telescope doctor: what is wrong with a run, since when, and what to change."""

from __future__ import annotations

import json
from pathlib import Path

from telescope.commands.arguments import Parser
from telescope.commands.language import language

USAGE = "telescope doctor RUN [--json] [--lang zh|en]"


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Find what is wrong with a run: problems by severity, since which step, the tokens that "
        "show them, and which setting to change. Reads run folders, and logs of verl and TRL.",
    )
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="run folder, TRL's trainer_state.json, TensorBoard events, a W&B file or verl's log",
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    options = parser.parse_args(arguments)

    from telescope.doctor import examine
    from telescope.doctor.terminal import lines

    lang = language()
    examination = examine(options.run)
    found = examination.findings()
    if options.json:
        answer = {
            "run": str(options.run),
            "steps": examination.steps,
            "findings": [finding.to_json(lang) for finding in found],
        }
        print(json.dumps(answer, ensure_ascii=False, indent=1))
    else:
        print("\n".join(lines(options.run, found, examination.steps, lang)))
