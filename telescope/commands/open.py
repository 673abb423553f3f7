"""telescope open: a run folder made from another trainer's files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from telescope.commands.arguments import Parser
from telescope.errors import TelescopeError

USAGE = "telescope open PATH [--as KIND] [--to FOLDER] [--tokenizer MODEL] [--settings FILE]"


def run(arguments: list[str]) -> None:
    parser = Parser(USAGE, "Make a run folder from the files of another trainer.")
    parser.add_argument("path", type=Path, metavar="PATH", help="file or folder that it wrote")
    parser.add_argument(
        "--as", dest="kind", metavar="KIND", help="prime-rl, slime, nemo-rl, trl, verl"
    )
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="default: runs/NAME")
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="its folder or name; without it tokens are numbers"
    )
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="TOML: estimator, gamma, lam, clip_low, …"
    )
    parser.add_argument("--samples", type=int, default=64, help="answers kept of each step")
    options = parser.parse_args(arguments)

    from telescope.peers.opening import open_files

    opened = open_files(
        options.path,
        options.to or Path("runs") / options.path.resolve().stem,
        kind=options.kind,
        tokenizer=_tokenizer(options.tokenizer),
        settings=_settings(options.settings),
        samples=options.samples,
    )
    steps = opened.steps
    recorded = f"{len(steps)} steps ({steps[0]} to {steps[-1]})"
    if len(steps) == 1:
        recorded = f"1 step ({steps[0]})"
    print(f"{opened.folder}: {recorded} of {opened.kind.name}")
    print(f"columns: {', '.join(opened.columns)}")
    for name, use in opened.missing.items():
        print(f"no {name}: without it there is no {use}")
    for rule in opened.kind.rules:
        print(f"{opened.kind.name}: {rule}")
    print(f"next: telescope view {opened.folder}")


def _tokenizer(name: str | None) -> Any:
    if name is None:
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise TelescopeError(f"no tokenizer {name}: {problem}") from None


def _settings(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise TelescopeError(f"{path} cannot be read as TOML: {error}") from None
