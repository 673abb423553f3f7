"""The page for those who come from verl or TRL: what it calls ours exists, and our defaults are as it says."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from telescope.algorithms import ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES
from telescope.config import fields, load_config
from telescope.config.suggest import names_at_peers, peers, same_name
from tests import ROOT

PAGE = ROOT / "docs" / "coming-from.md"
SETTINGS = {name: (kind, default) for name, kind, default, _ in fields()}
METRICS = set(
    re.findall(
        r"^\| `([a-z]+/[^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text("utf-8"), re.MULTILINE
    )
)


CHOICES = {
    "credit.estimator": "|".join(ESTIMATORS),
    "actor.loss": "|".join(POLICY_LOSSES),
    "critic.loss": "|".join(VALUE_LOSSES),
}


def tables() -> Iterator[tuple[list[str], list[list[str]]]]:
    """(header, rows) of each table of the page."""
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE.read_text("utf-8"), re.MULTILINE):
        head, _, *rows = [
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in block.splitlines()
        ]
        assert all(len(row) == len(head) for row in rows), head
        yield head, rows


def ours() -> list[str]:
    """Everything in backticks in the columns that are about Telescope."""
    found = []
    for head, rows in tables():
        columns = [
            i for i, title in enumerate(head) if title in ("Telescope", "Telescope's key", "recipe")
        ]
        found += [
            name for row in rows for i in columns for name in re.findall(r"`([^`]+)`", row[i])
        ]
    return found


def read(text: str) -> Any:
    """A value as a recipe would have it; what is no TOML is a word, and «none» stands for None."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return None if text == "none" else text


def wrong(name: str) -> str | None:
    """What is wrong with a name of ours, if anything is: a setting, a setting with a value, a metric, a command, a file or an object."""
    key, _, value = name.partition(" = ")
    if key in SETTINGS:
        kind = CHOICES.get(key, SETTINGS[key][0])
        words = (
            kind.split("|")
            if re.fullmatch(r"[\w+|#-]+", kind) and isinstance(read(value), str)
            else [read(value)]
        )
        return None if not value or read(value) in words else f"{key} is {kind}, not {value}"
    if name.startswith("telescope."):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            return str(error)
        return None
    if name.startswith("telescope/"):
        return None if (ROOT / name).is_file() else "no such file"
    known = {
        "telescope train",
        "telescope export",
        "--resume",
        "--rollout.engine vllm",
        "step",
        *METRICS,
    }
    return (
        None
        if name in known
        else "neither a setting nor a metric, a command, a file or an object of telescope"
    )


def test_every_setting_function_and_file_of_ours_on_the_page_exists() -> None:
    names = ours()
    assert len(names) > 250
    assert sum(name.partition(" = ")[0] in SETTINGS for name in names) > 150
    assert [(name, wrong(name)) for name in names if wrong(name)] == []


def keys_of(peer: str) -> list[tuple[list[str], str]]:
    """(their names, the cell with ours) of each row of the tables of keys."""
    rows = [row for head, rows in tables() if head == [peer, "Telescope", ""] for row in rows]
    found = []
    for theirs, ours, _ in rows:
        names = [name.partition("=")[0] for name in re.findall(r"`([^`]+)`", theirs)]
        found.append(([name.removeprefix("…") for name in names], ours))
    return found


@pytest.mark.parametrize("peer", ["verl", "TRL", "OpenRLHF"])
def test_a_setting_named_as_on_the_page_is_answered_with_ours(peer: str) -> None:
    known = {name: "" for name in SETTINGS}
    wrong = []
    for theirs, ours in keys_of(peer):
        for name in theirs:
            meant = names_at_peers(name) or same_name(name, known)
            if ours != "nothing" and not any(f"`{name}" in ours for name in meant):
                wrong.append((name, meant))
    assert wrong == []


@pytest.mark.parametrize("peer", ["verl", "TRL", "OpenRLHF"])
def test_every_name_of_a_peer_that_we_answer_is_on_the_page(peer: str) -> None:
    table = peers()[peer.lower()]
    rows = keys_of(peer)
    for end, meant in table.items():
        cells = [ours for theirs, ours in rows if any(name.endswith(end) for name in theirs)]
        assert all(any(f"`{name}" in cell for cell in cells) for name in meant), (end, meant)
    assert {name for names in table.values() for name in names} <= {*SETTINGS, "--resume"}


@pytest.mark.parametrize(
    "name",
    [
        "credit.lambda",
        'credit.estimator = "ppo"',
        "telescope.algorithms.gea",
        "telescope/trainers.py",
        "reward/mean",
        "telescope fit",
    ],
)
def test_a_name_that_does_not_exist_would_be_found(name: str) -> None:
    assert wrong(name) is not None


def test_our_defaults_are_as_the_page_says_and_differ_from_theirs() -> None:
    seen = []
    for head, rows in tables():
        if head[2:4] != ["Telescope's key", "Telescope"]:
            continue
        for row in rows:
            (key,) = re.findall(r"`([^`]+)`", row[2])
            assert read(row[3]) == SETTINGS[key][1], key
            assert read(row[1]) != SETTINGS[key][1], f"{key} is no difference"
            seen.append(key)
    assert len(seen) > 30


def test_the_quickstarts_settings_are_the_recipes() -> None:
    config = load_config(ROOT / "recipes" / "qwen2.5-0.5b-gsm8k.toml").model_dump()
    ((_, rows),) = [(head, rows) for head, rows in tables() if head[1] == "recipe"]
    settings = [
        pair.split(" = ") for row in rows for pair in re.findall(r"`([a-z_.]+ = [^`]+)`", row[1])
    ]
    assert len(settings) > 18
    for key, value in settings:
        found: Any = config
        for part in key.split("."):
            found = found[part]
        assert found == read(value), key


def test_the_script_on_the_page_makes_a_config_with_trls_settings() -> None:
    (code,) = re.findall(
        r"^config = (load_config\(.*?\n\]\))", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    config = eval(code, {"load_config": load_config})
    assert (
        config.actor.lr,
        config.critic.lr,
        config.actor.epochs,
        config.rollout.batch_size * config.steps,
    ) == (3e-6, 3e-6, 4, 10_048)


def test_links_on_the_page_lead_somewhere() -> None:
    text = PAGE.read_text("utf-8")
    headings: list[str] = []
    for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        headings.append(f"{anchor}-{headings.count(anchor)}" if anchor in headings else anchor)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert (PAGE.parent / path).exists(), target
        assert path or anchor in headings, target


def test_the_kl_metrics_of_the_verl_inside_search_r1_are_mapped() -> None:
    rows = [row for _, table in tables() for row in table]
    found = {name: row[1] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    assert "`reward/kl`" in found["critic/kl"]
    assert found["critic/kl_coeff"] == "`reward/kl_coef`"


@pytest.mark.parametrize("page", ["metrics.md", "columns.md", "algorithms.md"])
def test_where_kl_is_defined_it_says_that_only_the_mean_cannot_be_negative(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    lines = [line for line in text.splitlines() if "KL" in line and "negative" in line]
    assert any("≥ 0" in line and "mean" in line for line in lines), page
