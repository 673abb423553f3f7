"""telescope doctor: what is wrong with a run, since when, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from telescope.commands.arguments import (
    Parser,
    Setting,
    add_trust,
    parse_with_settings,
    print_json,
)
from telescope.commands.language import language, tell
from telescope.errors import TelescopeError

if TYPE_CHECKING:
    import argparse

    from telescope.config import Config
    from telescope.doctor import Finding

USAGE = (
    "telescope doctor RUN [--json] [--prove [--finding ID] [--steps N] [--from-start] "
    "[--trust] [--section.key value ...]] [--lang zh|en]"
)


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
    parser.add_argument(
        "--prove",
        action="store_true",
        help="test the top finding: train from the checkpoint before it, as it was and with the "
        "proposed change, and plot both; settings given here replace the proposal",
    )
    parser.add_argument("--finding", metavar="ID", help="--prove: another finding than the top one")
    parser.add_argument(
        "--steps",
        type=int,
        default=30,
        metavar="N",
        help="--prove: steps of each side (default 30)",
    )
    parser.add_argument(
        "--from-start",
        action="store_true",
        help="--prove: train from step 0, where there is no checkpoint before the finding",
    )
    add_trust(parser)
    options, _, settings = parse_with_settings(parser, arguments)
    if settings and not options.prove:
        parser.error(f"--{settings[0][0]} is a setting to try: add --prove")

    from telescope.doctor import examine
    from telescope.doctor.terminal import lines
    from telescope.ledger.damage import run_damage

    lang = language()
    examination = examine(options.run)
    found = examination.findings()
    tell(*run_damage(options.run))
    if options.prove:
        _prove(options, found, settings)
    elif options.json:
        answer = {
            "run": str(options.run),
            "steps": examination.steps,
            "findings": [finding.to_json(lang) for finding in found],
        }
        print_json(answer, indent=1)
    else:
        print("\n".join(lines(options.run, found, examination.steps, lang)))


def _prove(
    options: argparse.Namespace, found: Sequence[Finding], settings: Sequence[Setting]
) -> None:
    """Trains both sides and prints what that showed."""
    from telescope.run.proof import prove

    lang = language()
    proof = prove(
        options.run,
        _chosen(options.finding, found),
        _train,
        change=settings,
        steps=options.steps,
        from_start=options.from_start,
        trusted=options.trust,
    )
    picture = proof.write(lang)
    if options.json:
        print((proof.folder / "proof.json").read_text("utf-8"))
    else:
        print(f"{proof.terminal(lang)}\n{picture}")


def _chosen(wanted: str | None, found: Sequence[Finding]) -> Finding:
    """The finding that is to be tested."""
    if not found:
        raise TelescopeError("the doctor found nothing in this run: there is nothing to prove")
    for finding in found:
        if wanted in (None, finding.id):
            return finding
    there = ", ".join(finding.id for finding in found)
    raise TelescopeError(f"--finding {wanted}: this run has {there}")


def _train(config: Config, until: int) -> None:
    """Trains a run from its newest checkpoint to a step."""
    from telescope.trainer import Trainer

    Trainer(config, resume=True).fit(until)
