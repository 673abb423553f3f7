"""telescope plan: what a recipe needs on 1, 8, 64, … GPUs."""

from __future__ import annotations

from telescope.commands.arguments import Parser, parse_with_settings

USAGE = "telescope plan [RECIPE] [--gpus 1,8,64] [--shape 7B] [--suggest] [--section.key value ...]"


def run(arguments: list[str]) -> None:
    from telescope.scale.plan import command

    parser = Parser(
        USAGE,
        "Estimate memory, network traffic and time per step of a recipe, for each number of GPUs. "
        "`telescope train --help` lists the settings.",
    )
    command.add_arguments(parser)
    options, recipe, settings = parse_with_settings(parser, arguments)
    print(command.run(options, recipe, settings))
