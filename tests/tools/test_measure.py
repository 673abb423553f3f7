"""The counts that tools/measure.py prints."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests import ROOT

SOURCE = '''"""A docstring
of two lines."""

# a comment
a, b = 1, 2
c = f(a)  # a call
'''


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure", ROOT / "tools" / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_counts_of_a_source_that_can_be_counted_by_hand(measure: ModuleType) -> None:
    found = measure.Count()
    found.add(SOURCE)
    assert (found.files, found.lines, found.code, found.pairs, found.long) == (1, 6, 2, 1, 0)
    # statements: docstring, pair, assignment; expressions: the docstring's constant,
    # the two tuples with two names and two numbers, c, the call, f and a
    assert found.nodes == 3 + 1 + 6 + 4


def test_every_measure_has_figures_of_others(measure: ModuleType) -> None:
    assert set(measure.measures(ROOT / "telescope")) == set(measure.ANCHORS) == set(measure.BEFORE)
