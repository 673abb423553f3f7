"""docs/doctor.md and its Chinese page list every check, in the package's own words."""

from __future__ import annotations

from telescope.doctor.check import CHECKS
from telescope.doctor.words import rule_of
from tests import ROOT
from tools import doctor_docs


def test_the_pages_list_every_check_as_it_is() -> None:
    examples = {id: doctor_docs.example(check) for id, check in CHECKS.items()}
    for lang, page in doctor_docs.pages():
        text = page.read_text("utf-8")
        listed = text.partition(doctor_docs.BEGIN)[2].partition(doctor_docs.END)[0]
        made = doctor_docs.section({id: found for id, (found, _) in examples.items()}, lang)
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
