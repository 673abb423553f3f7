"""Formulas as TeX and MathML: each kind is translated once, and its numbers are put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from telescope.explain.trace import traces
from telescope.viewer import formulas
from telescope.viewer.formulas import ATTRIBUTES, TAGS, formula_of, shape_of, translate_shape
from telescope.viewer.payload import page_term, with_formulas
from tests.viewer.fake import HOSTILE, lesson

LINES = sorted(
    {
        text
        for sample in lesson()
        for t in range(len(sample))
        for trace in traces(sample, t)
        for text in (trace.formula, trace.substituted)
    }
)


def tags(tree: list[Any]) -> Iterator[tuple[str, dict[str, str]]]:
    yield tree[0], tree[1]
    for child in tree[2:]:
        if isinstance(child, list):
            yield from tags(child)


def test_a_formula_with_its_numbers_put_back_is_the_formula_translated() -> None:
    for line in LINES:
        assert translate_shape(shape_of(line)[0]) is not None, line
        found, direct = formula_of(line), formulas._translated(line)
        assert found is not None
        assert direct is not None
        assert list(found) == list(direct)


def test_formulas_of_one_kind_are_translated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    translate_shape.cache_clear()
    calls: list[str] = []
    translated = formulas._translated
    monkeypatch.setattr(
        formulas, "_translated", lambda text: calls.append(text) or translated(text)
    )
    first = formula_of("δ₃ = 0.5 − 0.2")
    second = formula_of("δ₁₂ = 7 − 1.25")
    assert len(calls) == 1
    assert first is not None
    assert second is not None
    assert first[0] == r"\delta_{3} = 0.5 - 0.2"
    assert second[0] == r"\delta_{12} = 7 - 1.25"
    assert second[1] == [
        "mrow", {}, ["msub", {}, ["mi", {}, "δ"], ["mn", {}, "12"]], ["mo", {}, "="],
        ["mn", {}, "7"], ["mo", {}, "−"], ["mn", {}, "1.25"],
    ]  # fmt: skip


def test_a_power_of_ten_has_no_leading_zero() -> None:
    found = formula_of("−1.526e−05")
    assert found is not None
    assert found[0] == r"-1.526 \times 10^{-5}"


def test_a_tree_has_only_the_tags_and_attributes_of_formulas() -> None:
    for line in [*LINES, *HOSTILE[:-1], "x href=javascript:1", r"\href{javascript:1}{x}"]:
        found = formula_of(line)
        for tag, attributes in tags(found[1]) if found else ():
            assert tag in TAGS
            assert set(attributes) <= ATTRIBUTES


def test_a_term_has_its_line_in_tex() -> None:
    trace = next(trace for trace in traces(lesson()[0], 3) if trace.name == "delta")
    term = with_formulas(page_term(trace))
    assert term["tex"] == (
        r"\delta_{3} = r_{3} + \gamma\cdot V_{4} - V_{3} = -0.018 + 1\cdot0.72 - 0.6 = 0.102"
    )
    assert term["math"][2] == ["msub", {}, ["mi", {}, "δ"], ["mn", {}, "3"]]
    assert term["math_numbers"][0] == "mrow"
    long = with_formulas(page_term(trace) | {"formula": "x + " * 1_000})
    assert long["tex"] is None
    assert long["math"] is None
