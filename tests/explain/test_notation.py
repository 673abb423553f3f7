"""One table of symbols: every text and every formula uses those, and each has one meaning."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

import telescope
from telescope.algorithms.definitions import ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES
from telescope.batch import COLUMNS
from telescope.commands import main
from telescope.explain.example import BATCH
from telescope.explain.symbols import known_symbols, notation, symbols
from telescope.explain.tex import _TOKEN
from telescope.explain.trace import Tracer
from telescope.explain.words import texts
from tests.explain.samples import demo, trained, with_tool

PACKAGE = Path(telescope.__file__).parent
CODE = re.compile(r"`[^`]*`|\b[a-z]+(?:_[a-z]+)+\b(?:\[\w+\])?|«[^»]*»|--[a-z]+")
"""Names of columns, settings and functions are no symbols."""
ENGLISH = {"a", "I"}


def formulas() -> Iterator[str]:
    for definitions in (ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES):
        yield from (definition.formula for definition in definitions.values())
    yield from (column.formula for column in COLUMNS.values())
    samples = [demo(), with_tool(), *BATCH, *trained(2)]
    samples += [*trained(1, estimator="td0"), *trained(1, estimator="monte_carlo")]
    for sample in samples:
        tracer = Tracer(sample)
        for t in tracer.steps.at:
            yield from (trace.formula for trace in tracer.traces(t))
            yield from (trace.formula for trace in tracer.compare(t, (2,), (0.5,)))


def sentences() -> Iterator[str]:
    """What an expert reads: labels, meanings, columns."""
    for table in ("ui", "column", "expert"):
        for entry in texts()[table].values():
            yield entry["zh"]
            yield entry["en"]
    families = tomllib.loads(
        (PACKAGE / "algorithms" / "definitions" / "texts.toml").read_text("utf-8")
    )
    for family in families.values():
        for entry in family.values():
            yield entry.get("zh", "")
            yield entry.get("en", "")
    for column in COLUMNS.values():
        yield column.zh
        yield column.en
    for definitions in (ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES):
        for definition in definitions.values():
            yield definition.words.zh
            yield definition.words.en


def written(text: str) -> Iterator[str]:
    """The symbols of a text, without their index: V of V₃ and V[i], π_old of π_old₃."""
    for found in _TOKEN.finditer(CODE.sub(" ", text)):
        if found.lastgroup != "symbol" or found[0] in ENGLISH or found["letter"] in "ΣΠ":
            continue
        below = found["below"] or ""
        is_index = below in ("i", "k", "v") or below.isdigit() or not below
        yield found["letter"] if is_index else f"{found['letter']}_{below}"
        index = found["index"] or ""
        if index and not index.isdigit():
            yield index


def unknown(source: Iterator[str]) -> dict[str, str]:
    known = known_symbols()
    return {symbol: text for text in source for symbol in written(text) if symbol not in known}


def test_every_symbol_of_a_formula_is_in_the_table() -> None:
    assert unknown(formulas()) == {}


def test_every_symbol_of_a_text_is_in_the_table() -> None:
    assert unknown(sentences()) == {}


QUOTED = {"q9": {"V_t"}}
"""Symbols of the question itself, which its answer quotes."""


def test_every_symbol_of_an_answer_is_in_the_table() -> None:
    seen = 0
    for file in (PACKAGE / "explain" / "answers").glob("*.toml"):
        for key, entry in tomllib.loads(file.read_text("utf-8")).items():
            said = [say[lang] for say in entry["say"] for lang in ("zh", "en") if lang in say]
            numbers = (re.sub(r"\{[^{}]*\}", "0", text) for text in said)
            assert unknown(numbers).keys() <= QUOTED.get(key, set()), key
            seen += len(said)
    assert seen > 100


def test_an_unknown_symbol_would_be_found() -> None:
    assert set(unknown(iter(["A[m] = ζ₃ + Z_end"]))) == {"m", "Z_end"}  # ζ is no letter of ours
    assert "n" not in {index for text in formulas() for index in re.findall(r"\[(\w)\]", text)}


def test_a_symbol_has_one_row() -> None:
    every = [name for row in symbols() for name in (row.symbol, *row.also)]
    assert len(every) == len(set(every))
    for row in symbols():
        assert row.name.keys() == row.meaning.keys() == {"zh", "en"}


def test_the_functions_of_the_table_exist() -> None:
    for row in symbols():
        if row.ours:
            module, _, name = row.ours.rpartition(".")
            assert callable(getattr(importlib.import_module(module), name)), row.ours


def test_a_symbol_belongs_to_what_its_column_is_anchored_to() -> None:
    of = {row.symbol: row.of for row in symbols()}
    anchors = {"V": "values", "R": "returns", "A": "advantages", "r": "token_level_rewards"}
    anchors |= {"δ": "deltas", "Â": "whitened", "kl": "kl", "score": "token_level_scores"}
    for symbol, column in anchors.items():
        assert of[symbol] == COLUMNS[column].anchor


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_the_terminal_and_has_every_symbol(lang: str, width: int) -> None:
    lines = notation(lang, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    first = {line.split()[0] for line in lines if line[0] not in " ─"}
    assert {row.symbol for row in symbols()} <= first


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "--notation", "--lang", "zh"])
    assert "V[i] 是写 token i 之前" in capsys.readouterr().out
    main(["explain", "--notation", "--lang", "en", "--tex"])
    assert capsys.readouterr().out.startswith("| symbol |")
