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
from telescope.explain.code import NAMES, code_of
from telescope.explain.example import BATCH
from telescope.explain.questions import Sentence, questions
from telescope.explain.settings import Settings
from telescope.explain.symbols import notation, symbols
from telescope.explain.tables import columns, metaphor_list
from telescope.explain.terminal import render
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
        for t in sample.written:
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


KNOWN = {written for row in symbols() for written in (row.symbol, *row.also)}
"""Every way in which a symbol of the table is written."""


def unknown(source: Iterator[str]) -> dict[str, str]:
    return {symbol: text for text in source for symbol in written(text) if symbol not in KNOWN}


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


WITH_NUMBER = re.compile(
    r"(?<![\w·(^/])(?<![+−·/~] )([A-Za-zÂγλδπρμσβε](?:_[a-z]+)?)(?:\[(?:\{i\}|i)\])?"
    r"(?: = | is | 是 |等于 )\{(\w+)\}(?! ?[+−·×])"
)
"""A symbol, with its index or without, and the fact that is printed as its number."""
MEANS = {
    "A": {"A", "A0", "MC"},
    "G": {"G"},
    "N": {"N"},
    "R": {"R", "target"},
    "T": {"T"},
    "V": {"V", "V_mean", "blamed_V", "drop_V"},
    "V_end": {"end"},
    "c": {"dual_clip"},
    "r": {"r", "r_last"},
    "v": {"v"},
    "Â": {"W", "mean_W", "blamed", "praised"},
    "β": {"beta"},
    "γ": {"gamma", "sim_gamma"},
    "δ": {"d", "blamed_d", "delta_sum", "delta_last", "drop"},
    "ε": {"eps_value"},
    "λ": {"lam", "lam_R", "sim_lams"},
    "μ": {"mu"},
    "π": {"new"},
    "π_old": {"old", "old_used", "pi_old"},
    "π_ref": {"ref"},
    "ρ": {"ratio", "ratio_min"},
    "σ": {"sigma"},
}
"""Symbol -> the facts that are its numbers: one symbol, one meaning."""


def is_equal(sentence: Sentence, symbol: str, fact: str) -> bool:
    """Whether the sentence claims that the fact is equal to the symbol's own number there."""
    claim = sentence.claim or ""
    sides = [re.findall(r"\w+", part) for part in re.split("==|and", claim)]
    return [fact] in sides and any([own] in sides for own in MEANS[symbol] - {fact})


def with_numbers(text: str) -> Iterator[tuple[str, str]]:
    for found in WITH_NUMBER.finditer(text):
        yield found[1], found[2]


def test_the_number_behind_a_symbol_is_the_symbols() -> None:
    seen: set[tuple[str, str]] = set()
    for question in questions().values():
        for sentence in question.sentences:
            for text in (sentence.zh, sentence.en):
                for symbol, fact in with_numbers(text):
                    if not is_equal(sentence, symbol, fact):
                        assert fact in MEANS.get(symbol, ()), (question.id, text)
                    seen.add((symbol, fact))
    assert seen >= {(symbol, fact) for symbol, facts in MEANS.items() for fact in facts}
    assert set(MEANS) <= KNOWN


def test_a_length_called_r_would_be_found() -> None:
    assert [*with_numbers("the response takes {T} slots (with R = {T})")] == [("R", "T")]


def test_a_letter_has_a_row_of_its_own() -> None:
    """What stands in one row with it is the same letter with a suffix, or a name of more letters."""
    for row in symbols():
        for written_too in row.also:
            assert written_too.startswith(row.symbol) or len(written_too) > 1, row.symbol
            assert written_too[0] == row.symbol[0] or "_" not in written_too, row.symbol


def printed() -> Iterator[str]:
    """What the program prints besides answers: views, notes on code, metrics."""
    for sample in (demo(), with_tool(), *BATCH):
        for lang in ("zh", "en"):
            for extent in ("first", "all"):
                yield from render(sample, lang=lang, width=100, extent=extent).splitlines()
    for lang in ("zh", "en"):
        yield from columns(lang, 1000).splitlines()
        yield from metaphor_list(lang, 1000).splitlines()
        yield from (code.note(lang) for name in NAMES for code in code_of(name, Settings.of()))
    for entry in tomllib.loads((PACKAGE / "explain/ask/metrics.toml").read_text("utf-8")).values():
        yield entry["zh"]
        yield entry["en"]


def test_every_symbol_that_is_printed_is_in_the_table() -> None:
    named = re.compile(r"--[a-z-]+ [A-Z]\b|\btop-[kp]\b|\bs\d+\b|\d+[a-zA-Z]\b")
    lines = [named.sub(" ", line) for line in printed()]
    assert unknown(iter(lines)) == {}
    assert len(lines) > 300


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
