"""telescope recipes: the recipes that come with the package."""

from __future__ import annotations

import difflib

from telescope.commands.arguments import Parser
from telescope.errors import TelescopeError

USAGE = "telescope recipes [NAME]"


def run(arguments: list[str]) -> None:
    from telescope.config.recipes import shipped_recipes

    parser = Parser(
        USAGE,
        "List the recipes that come with the package: `telescope train NAME` trains one. "
        "With NAME: print that recipe, to copy it: `telescope recipes grpo > my.toml`.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="recipe to print (default: list)")
    name = parser.parse_args(arguments).name
    recipes = shipped_recipes()
    if name is None:
        width = max(map(len, recipes), default=0)
        for known, path in recipes.items():
            print(f"{known:{width}}  {_first_sentence(path.read_text('utf-8'))}")
    elif name in recipes:
        print(recipes[name].read_text("utf-8"), end="")
    else:
        close = difflib.get_close_matches(name, recipes, 1) or sorted(recipes)
        raise TelescopeError(f"no recipe `{name}`; there is: {', '.join(close)}")


def _first_sentence(text: str) -> str:
    """What the recipe's first comment says."""
    line = text.splitlines()[0].removeprefix("# ")
    return line.partition(": telescope train")[0].partition(". ")[0].rstrip(".")
