"""docs/doctor.md and its Chinese page list every check, in the package's own words."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from telescope.doctor.check import CHECKS
from telescope.doctor.words import rule_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("doctor_docs", ROOT / "tools" / "doctor_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_list_every_check_as_it_is(tool: ModuleType) -> None:
    examples = {id: tool.example(check) for id, check in CHECKS.items()}
    for lang, page in tool.pages():
        text = page.read_text("utf-8")
        listed = text.partition(tool.BEGIN)[2].partition(tool.END)[0].lstrip("\n")
        made = tool.section({id: found for id, (found, _) in examples.items()}, lang)
        assert listed.strip() == made.strip(), "run: python -m tools.doctor_docs"
    for id, (_, picture) in examples.items():
        assert (ROOT / "docs" / "doctor" / f"{id}.svg").read_text("utf-8") == picture, id


def test_a_rule_is_one_line_with_its_thresholds() -> None:
    for id in CHECKS:
        for lang in ("en", "zh"):
            rule = rule_of(id, lang)  # type: ignore[arg-type]
            assert "\n" not in rule
            assert "{" not in rule
            assert rule.endswith((".", "。"))
