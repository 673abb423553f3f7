"""docs/many-runs.md in both languages: its settings exist and mean what the page says."""

from __future__ import annotations

import re
import tomllib

import pytest

from telescope.config import validate
from tests import ROOT


@pytest.mark.parametrize("page", ["docs/many-runs.md", "docs/zh/many-runs.md"])
def test_the_settings_of_the_page_can_be_used(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    warm, log = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    config = validate(warm | log)
    assert config.warm_start.files == ["answers.jsonl"]
    assert (config.log.project, config.log.group, config.log.samples) == ("sums", "lr-sweep", 8)
