"""The examples of docs/rewards.md, and of its Chinese page, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from telescope.build import build_reward
from telescope.config import load_config
from telescope.roles.reward import Reward
from tests import ROOT
from tests.fakes import hand_batch
from tests.rewards import hostile

PAGES = ["docs/rewards.md", "docs/zh/rewards.md"]


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_the_functions_on_the_page_score_a_batch(page: str) -> None:
    space: dict[str, object] = {}
    for source in blocks(page, "python"):
        if "class " not in source:
            exec(source, space)
    batch = hand_batch([[1], [1]]).with_info(data=[{"answer": "r"}, {"answer": None}])
    reward = Reward({"short": space["short"], "checked": space["checked"]})
    one, other = reward.score(batch).scores
    assert (one.parts, other.parts) == ({"short": 1.0, "checked": 1.0}, {"short": 1.0})
    assert one.metrics == {"checked/characters": 1.0, "checked/late": 0.0}


@pytest.mark.parametrize("page", PAGES)
def test_the_recipes_on_the_page_make_rewards(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("SCORE_KEY", "secret")
    monkeypatch.setattr("telescope.rewards.programs.run_program", lambda *_: [""])
    made = []
    for number, source in enumerate(blocks(page, "toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(source, "utf-8")
        config = load_config(path)
        if config.reward.functions:
            made += build_reward(config, None, torch.device("cpu")).functions
    assert made == ["score", "math_verify", "format", "length", "python", "judge"]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_counts_the_hostile_programs(page: str) -> None:
    kinds = ("NETWORK", "FILES", "PROCESSES", "RESOURCES", "TOO_LONG", "LEFT_BEHIND", "FORGERIES")
    count = sum(len(getattr(hostile, kind)) for kind in kinds)
    assert re.search(rf"hostile\.py`.*?\b{count}\b", (ROOT / page).read_text("utf-8"))
