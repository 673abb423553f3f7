"""The examples of «Training from Python» run, and are the same in both languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from telescope.config import Config
from tests import ROOT


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_chinese_page_has_the_same_examples() -> None:
    english, chinese = (
        [re.sub(r"\s+# .*", "", code) for code in examples(page)]
        for page in ("python.md", "zh/python.md")
    )
    assert len(english) == 4
    assert english == chinese


@pytest.mark.slow
def test_the_examples_run(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tiny model in place of the built-in one and of Qwen's."""
    original = Config.builtin
    small = {"path": str(tiny_model)}
    monkeypatch.setattr(
        Config, "builtin", lambda **given: original(model=small, eval={"samples": 8}, **given)
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in examples("python.md"):
        exec(code.replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model)), names)
    made = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert made == ["callback", "model", "rows", "stream"]
    last = names["metrics"]
    assert last["mine/twice"] == 2 * last["reward/score_mean"]
