"""README and docs pages: length, links, and the commands and settings that they name."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from telescope.config import fields
from telescope.config.recipes import find_recipe, shipped_recipes
from tests import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "zh").glob("*.md")),
]
RUNNABLE = [page for page in PAGES if page.name != "log.md"]
"""Pages whose commands work today: the log keeps the names of its day."""
CURRENT = [page for page in RUNNABLE if page.name != "coming-from.md"]
"""Pages whose names are ours: coming-from.md names settings and files of other trainers."""
METHODS = {
    "actor.generate_sequences",
    "actor.update_actor",
    "critic.compute_values",
    "critic.update_critic",
    "reward.compute_reward",
}
SETTINGS = {name for name, *_ in fields()}
OF_EXAMPLES = {"credit.fade", "actor.weight"}
"""Settings of the estimator and the loss that docs/extending.md shows."""
SECTIONS = {name.split(".")[0] for name in SETTINGS if "." in name}


def test_the_readme_has_at_most_900_words() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_in_backticks_exist(page: Path) -> None:
    named = re.findall(r"`(?:--)?([a-z_]+\.[a-z_]+)(?: = [^`]*| [^`]*)?`", page.read_text("utf-8"))
    files = (".py", ".md", ".toml", ".js", ".css", ".json", ".html", ".jsonl", ".pt", ".txt")
    settings = [name for name in named if name.split(".")[0] in SECTIONS]
    settings = [name for name in settings if not name.endswith(files)]
    assert [name for name in settings if name not in SETTINGS | METHODS] == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_in_backticks_exist(page: Path) -> None:
    pattern = r"`((?:telescope|tests|benchmarks|recipes|examples|tools)/[\w./-]+\.\w+)[`:]"
    named = re.findall(pattern, page.read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    listed = set(re.findall(r"[\w./-]+\.md", str(site["nav"])))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    notes = {page for page in pages if page.endswith(".notes.md")}
    assert listed == pages - notes


def test_the_glossaries_have_the_same_rows() -> None:
    def rows(path: Path) -> list[str]:
        return [line for line in path.read_text("utf-8").splitlines() if line.startswith("| ")][1:]

    english = rows(ROOT / "docs" / "glossary.md")
    chinese = rows(ROOT / "docs" / "zh" / "glossary.md")
    assert len(english) > 40
    assert english == chinese


def test_contributing_shows_the_import_layers() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(rule["layers"] for rule in linter["contracts"] if rule["type"] == "layers")
    shown = " > ".join(layers).replace("telescope.", "")
    assert shown in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_every_recipe_is_in_the_gallery() -> None:
    gallery = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert [name for name in shipped_recipes() if f"`{name}`" not in gallery] == []


def test_a_recipe_is_found_by_name() -> None:
    assert find_recipe("calculator").is_file()
    assert find_recipe("recipes/calculator.toml") == Path("recipes/calculator.toml")
    assert find_recipe("no-such-recipe") == Path("no-such-recipe")


def test_a_file_comes_before_a_shipped_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calculator").write_text("steps = 1")
    assert find_recipe("calculator") == Path("calculator")


# ---- commands


def _commands(page: Path) -> list[list[str]]:
    """Every `telescope …` command in the code of a page, in words."""
    text = page.read_text("utf-8")
    code = re.findall(r"```(?:bash|text)\n(.*?)```", text, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in code for line in block.splitlines()]
    lines += re.findall(r"`(telescope [^`]+)`", text)
    found = re.findall(
        r"(?:^|/|-- |\s)telescope ((?:train|plan|eval|explain|ask|view|report|export)\b.*)",
        "\n".join(lines),
        re.MULTILINE,
    )
    return [
        shlex.split(line.partition(" #")[0].partition(" > ")[0], comments=True) for line in found
    ]


@functools.cache
def _options(command: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "telescope", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {*re.findall(r"--[\w.-]+", done.stdout), "--help"}


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_of_commands_exist(page: Path) -> None:
    wrong = []
    for command, *words in _commands(page):
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        own = {option for option in options if option[2:] not in SETTINGS | OF_EXAMPLES}
        wrong += [f"{command} {option}" for option in own - _options(command)]
    assert wrong == []


@pytest.mark.parametrize(
    ("page", "lang"), [("docs/explain.md", "en"), ("docs/zh/explain.md", "zh")]
)
def test_the_first_screen_in_the_docs_is_the_one_that_is_printed(
    page: str, lang: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from telescope.commands import main

    monkeypatch.setenv("COLUMNS", "80")
    main(["explain", "--lang", lang])
    printed = capsys.readouterr().out
    assert f"```text\n{printed}```" in (ROOT / page).read_text("utf-8")
    assert len(printed.splitlines()) <= 24


def test_the_whitening_in_the_docs_is_the_one_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from telescope.commands import main

    text = (ROOT / "docs" / "explain.md").read_text("utf-8")
    numbers = re.search(r"```json\n(\{\"advantages\".*?)\n```", text)
    (tmp_path / "two.json").write_text(numbers[1])
    monkeypatch.setenv("COLUMNS", "100")
    main(["explain", "--numbers", str(tmp_path / "two.json"), "--token", "0", "--lang", "en"])
    printed = capsys.readouterr().out
    assert printed[printed.index("whitening over the whole batch") :] in text
