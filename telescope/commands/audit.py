"""telescope audit: is a run's critic right?"""

from __future__ import annotations

import shutil
from pathlib import Path

from telescope.commands.arguments import Parser, add_trust, parse_with_settings, print_json
from telescope.commands.language import language

USAGE = (
    "telescope audit RUN [--step N] [--states 256] [--continuations 64] [--trust] "
    "[--section.key value]"
)


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Check the critic of RUN: write on from states of a step with the policy of that step, and "
        "compare V with what the continuations earn. Of a run without a critic, check its group "
        "baselines. The result is also written to RUN/audit, where the page finds it.",
    )
    parser.add_argument(
        "--step",
        type=int,
        help="step of the run (default: the last one whose policy is on disk); "
        "step N needs checkpoint N − 1, step 1 only the model",
    )
    parser.add_argument(
        "--states", type=int, default=256, help="most states to audit (default 256)"
    )
    parser.add_argument(
        "--continuations", type=int, default=64, help="continuations of each state (default 64)"
    )
    parser.add_argument(
        "--nearest",
        action="store_true",
        help="if that checkpoint is not on disk, use the nearest one",
    )
    parser.add_argument("--json", action="store_true", help="print the audit as JSON")
    add_trust(parser)
    options, folder, settings = parse_with_settings(parser, arguments)
    if folder is None:
        parser.error("give a run folder")

    from telescope.audit.file import save, to_json
    from telescope.audit.words import WIDTH, report
    from telescope.run.audit import audit_run

    audit = audit_run(
        Path(folder),
        step=options.step,
        states=options.states,
        continuations=options.continuations,
        nearest=options.nearest,
        trusted=options.trust,
        overrides=settings,
    )
    path = save(audit, Path(folder))
    if options.json:
        print_json(to_json(audit), allow_nan=False)
        return
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
    print(report(audit, language(), width))
    print(path)
