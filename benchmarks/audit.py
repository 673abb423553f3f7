"""How fast an audit is: states per second, and its parts.

    python benchmarks/audit.py                                       # the built-in job
    python benchmarks/audit.py recipes/smollm2-arithmetic.toml       # SmolLM2, on a GPU
    python benchmarks/audit.py --states 32 --continuations 8 --rollout.batch_size 32

Trains one step of the recipe, because the first step needs no checkpoint, then audits it twice. The
second time kernels are compiled and files are read, so it shows the audit itself. Prints one row of
Markdown for each.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from telescope.commands.arguments import Parser, parse_with_settings
from telescope.config import BUILTIN_RECIPE, load_config
from telescope.run.audit import audit_run
from telescope.trainer import Trainer

ONE_STEP = [
    ("steps", "1"),
    ("eval.samples", "1"),
    ("eval.prompts", "1"),
    ("checkpoint.every", "0"),
    ("ledger.samples", "64"),
]


def main() -> None:
    parser = Parser("python benchmarks/audit.py [RECIPE] [--section.key value ...]", __doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--states", type=int, default=256)
    parser.add_argument("--continuations", type=int, default=64)
    given, recipe, settings = parse_with_settings(parser, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            Path(recipe or BUILTIN_RECIPE), [*ONE_STEP, ("dir", folder), *settings]
        )
        Trainer(config).fit()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print("| audit | states | continuations | tokens at most | s | states/s | device |")
        print("|---|---|---|---|---|---|---|")
        for name in ("first", "second"):
            audit = audit_run(
                Path(config.run_dir),
                step=1,
                states=given.states,
                continuations=given.continuations,
            )
            most = config.rollout.max_response_tokens
            rate = audit.states / audit.seconds
            print(
                f"| {name} | {audit.states} | {audit.continuations} | {most} "
                f"| {audit.seconds:.1f} | {rate:.1f} | {audit.device} |"
            )


if __name__ == "__main__":
    main()
