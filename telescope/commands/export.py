"""telescope export: a checkpoint of a run as Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path

from telescope.commands.arguments import Parser, add_checkpoint, add_trust

USAGE = (
    "telescope export RUN DIR [--step N | --best] [--adapter] [--push NAME [--private]] [--trust]"
)


def run(arguments: list[str]) -> None:
    parser = Parser(
        USAGE,
        "Write a checkpoint of a run as Hugging Face folders: the actor in DIR, "
        "its critic in DIR/critic.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("dir", type=Path, metavar="DIR", help="new folder")
    add_checkpoint(parser)
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="of a LoRA run: write the adapters alone, for peft (default: merged into the weights)",
    )
    parser.add_argument(
        "--push",
        metavar="NAME",
        help="also upload DIR to this model repository of the Hugging Face hub, e.g. me/my-model",
    )
    parser.add_argument(
        "--private", action="store_true", help="with --push: make a new repository private"
    )
    add_trust(parser)
    options = parser.parse_args(arguments)
    if options.private and not options.push:
        parser.error("--private belongs to --push")

    from telescope.run.export import export_run, push_to_hub

    step = export_run(
        options.run,
        options.dir,
        step=options.step,
        adapter=options.adapter,
        trusted=options.trust,
    )
    describe = _describe_adapters if options.adapter else _describe_models
    print(f"exported step {step}: {describe(options.dir)}")
    if options.push:
        message = f"step {step} of {options.run.name}"
        address = push_to_hub(options.dir, options.push, private=options.private, message=message)
        print(f"pushed to {address}")


def _describe_adapters(folder: Path) -> str:
    """How to load exported LoRA adapters."""
    actor = f"peft.PeftModel.from_pretrained(base, {str(folder)!r}) is the actor"
    critic = folder / "critic"
    if not critic.is_dir():
        return actor
    return f"{actor}; {critic} has the critic's adapters and value head"


def _describe_models(folder: Path) -> str:
    """How to load exported models."""
    actor = f"{folder} loads with AutoModelForCausalLM"
    critic = folder / "critic"
    if not critic.is_dir():
        return f"{actor}; the run has no critic"
    architectures = json.loads((critic / "config.json").read_text("utf-8"))["architectures"] or []
    if any(name.endswith("ForTokenClassification") for name in architectures):
        return f"{actor}, {critic} with AutoModelForTokenClassification"
    value_model = "telescope.models.value.ValueModel (transformers has no class for it)"
    return f"{actor}, {critic} with {value_model}"
