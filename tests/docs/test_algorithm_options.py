"""The recipe of docs/algorithms.md is a valid one, and the same in both languages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from telescope.config import validate

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("algorithms.md", "zh/algorithms.md")


def recipe_of(page: str) -> dict[str, object]:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    return tomllib.loads(block)


@pytest.mark.parametrize("page", PAGES)
def test_the_options_of_the_page_are_settings(page: str) -> None:
    config = validate(recipe_of(page))
    assert config.actor.weighs
    assert config.actor.aggregates == "prompt-mean"


def test_both_pages_show_the_same_options() -> None:
    assert recipe_of(PAGES[0]) == recipe_of(PAGES[1])
