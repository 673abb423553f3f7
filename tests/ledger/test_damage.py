"""A damaged ledger file is refused in one line; no flipped bit is read as another number."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest
from pyarrow import parquet

from telescope.errors import TelescopeError
from telescope.ledger import reader
from telescope.ledger.completions import Completion, save_completions
from telescope.ledger.damage import ledger_damage
from telescope.ledger.schema import CHECKSUM, METADATA
from telescope.ledger.table import arrow_table, save_table
from telescope.viewer.prompts import PromptIndex
from telescope.viewer.rows import prompt_key
from tests.viewer.fake import fake_run

STEP = 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger file as the trainer writes it."""
    made = fake_run(tmp_path_factory.mktemp("made") / "run")
    run = tmp_path_factory.mktemp("damaged") / "run"
    run.mkdir()
    copy_to(made, path(run))
    return run


def path(run: Path) -> Path:
    return reader.path_of(run, STEP)


def copy_to(run: Path, target: Path, **changed: int) -> None:
    """The file with another step or version."""
    table = parquet.read_table(path(run))
    meta = json.loads(table.schema.metadata[METADATA]) | changed
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    save_table(arrow_table(columns, meta), target)


def everything(run: Path) -> tuple[Any, list[Any]]:
    table = reader.read(run, STEP)
    return table.to_pydict(), [reader.sample_of(table, i) for i in range(table.num_rows)]


def test_no_flipped_bit_is_read_as_another_number(run: Path):
    good = path(run).read_bytes()
    expected = repr(everything(run))  # NaN is not equal to itself
    chance = random.Random(0)
    refusals = []
    try:
        for _ in range(150):
            damaged = bytearray(good)
            damaged[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
            path(run).write_bytes(damaged)
            try:
                assert repr(everything(run)) == expected
            except TelescopeError as error:
                refusals.append(str(error))
    finally:
        path(run).write_bytes(good)
    assert len(refusals) > 50
    assert not any("\n" in said for said in refusals)


def test_a_cut_file_and_one_of_zeros_are_refused_everywhere(run: Path):
    good = path(run).read_bytes()
    key = prompt_key(reader.samples(run, STEP)[0].prompt)
    assert PromptIndex(run).rows(key, 1.0)
    try:
        for damaged in (b"", bytes(len(good)), good[: len(good) // 2], good[:50] + bytes(500)):
            path(run).write_bytes(damaged)
            with pytest.raises(TelescopeError, match="cannot be read"):
                everything(run)
            assert PromptIndex(run).rows(key, 1.0) == []
    finally:
        path(run).write_bytes(good)


def test_files_of_earlier_versions_have_no_checksum_and_are_read(tmp_path: Path):
    old = fake_run(tmp_path / "old")
    assert CHECKSUM not in parquet.read_schema(reader.path_of(old, STEP)).metadata
    assert reader.samples(old, STEP)


def test_no_flipped_bit_of_an_evaluation_s_answers_is_read_as_another_answer(tmp_path: Path):
    answers = [
        Completion("", "greedy", i, f"{i}+{i}=", f"{2 * i}", 1.0, True, {"exact": 1.0})
        for i in range(5)
    ]
    file = reader.path_of(tmp_path, STEP, "completions")
    save_completions(answers, file)
    good = file.read_bytes()
    expected = reader.read(tmp_path, STEP, kind="completions").to_pydict()
    refused = 0
    for place in range(0, len(good), 3):
        damaged = bytearray(good)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        try:
            assert reader.read(tmp_path, STEP, kind="completions").to_pydict() == expected
        except TelescopeError:
            refused += 1
    assert refused > 50


def test_damaged_files_are_named_in_one_line(run: Path, tmp_path: Path):
    for step in (1, 2, 3):
        for kind in get_args(reader.Kind):
            target = reader.path_of(tmp_path, step, kind)
            target.parent.mkdir(exist_ok=True)
            copy_to(run, target, step=step)
    assert ledger_damage(tmp_path) == []
    cut = path(run).read_bytes()[:-50]
    reader.path_of(tmp_path, 2, "eval").write_bytes(cut)
    reader.path_of(tmp_path, 3, "completions").write_bytes(cut)
    folder = tmp_path / "ledger"
    assert ledger_damage(tmp_path, until=2) == [
        f"damaged files of {folder} are left out: eval_000002.parquet"
    ]
    for step in (1, 2, 3):
        for kind in ("step", "eval"):
            reader.path_of(tmp_path, step, kind).write_bytes(b"")
    (line,) = ledger_damage(tmp_path)
    assert line.startswith(f"damaged files of {folder} are left out: step_000001.parquet, step_")
    assert line.endswith(" and 2 more")


def test_a_file_in_the_place_of_another_steps_is_damage(run: Path, tmp_path: Path):
    for step in (1, 2):
        copy_to(run, reader.path_of(tmp_path, step), step=step)
        answer = Completion("", "greedy", 0, "1+1=", "2", 1.0, True, {"exact": 1.0})
        save_completions([answer], reader.path_of(tmp_path, step, "completions"), step)
    assert ledger_damage(tmp_path) == []
    for kind in ("step", "completions"):
        first, second = (reader.path_of(tmp_path, step, kind) for step in (1, 2))
        first.rename(tmp_path / "aside")
        second.rename(first)
        (tmp_path / "aside").rename(second)
        with pytest.raises(TelescopeError, match="it is the file of step 2"):
            reader.read(tmp_path, 1, kind=kind)
    (line,) = ledger_damage(tmp_path)
    named = "step_000001.parquet, step_000002.parquet, completions_000001.parquet, completions_"
    assert named in line


def test_a_file_of_a_newer_version_is_not_called_damaged(run: Path, tmp_path: Path):
    copy_to(run, path(tmp_path), version=99)
    assert ledger_damage(tmp_path) == []
