from __future__ import annotations

import re

from telescope.batch import COLUMNS
from telescope.config import fields
from telescope.explain.ask.library import entries, look_up
from tests import ROOT


def test_metrics_are_those_of_the_docs_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 50
    for name, meaning in rows:
        plain = meaning.replace("\\|", "|")
        assert entries()[name].en == f"Metric `{name}`: {plain}"


def test_every_column_and_setting_can_be_looked_up() -> None:
    for name in COLUMNS:
        assert entries()[name].id == f"column:{name}"
    for key, *_ in fields():
        if "." in key:
            assert entries()[key].id == f"setting:{key}"


def test_a_sentence_that_merely_mentions_a_name_is_no_lookup() -> None:
    assert look_up("what is ref_log_prob") is not None
    assert look_up("does ref_log_prob change while the actor trains on the weather") is None
