"""Lines of metrics.jsonl and the settings in config.toml: damage is noticed, and said."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from telescope.commands import main
from telescope.config import Config, checked_toml, load_config, to_saved_toml
from telescope.errors import TelescopeError
from telescope.ledger.damage import run_damage
from telescope.ledger.lines import damage_of, read_line, write_line
from telescope.viewer.series import Metrics
from telescope.viewer.settings_list import RunSettings

ROW = {"step": 3, "reward/score_mean": 0.1 + 0.2, "actor/loss": None}


def flipped(data: bytes) -> list[bytes]:
    """The data with each of its bits flipped, one at a time."""
    found = []
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            found.append(bytes(damaged))
    return found


def test_a_line_is_json_and_comes_back_without_its_checksum():
    line = write_line(ROW)
    assert json.loads(line)["reward/score_mean"] == 0.1 + 0.2
    assert read_line(line.encode()) == ROW


def test_no_flipped_bit_of_a_line_is_read_as_another_number():
    line = write_line(ROW).strip().encode()
    read = [read_line(damaged) for damaged in flipped(line)]
    assert all(row is None or row == ROW for row in read)
    assert read.count(None) > 400


def test_lines_of_earlier_versions_have_no_checksum():
    assert read_line(b'{"step": 1, "perf/tokens": 7}') == {"step": 1, "perf/tokens": 7}
    assert read_line(b'{"step": 1, "perf/tok') is None
    assert read_line(b"[1]") is None


@pytest.fixture
def recipe(make_config: Callable[..., Config]) -> Path:
    config = make_config(("actor.lr", "1.25e-5"))
    config.run_dir.mkdir(parents=True)
    path = config.run_dir / "config.toml"
    path.write_text(to_saved_toml(config), "utf-8")
    assert load_config(path) == config
    return path


def test_no_flipped_bit_and_no_cut_of_a_config_is_read_as_another_setting(recipe: Path):
    good = recipe.read_bytes()
    known = checked_toml(recipe)
    cuts = [good[:end] for end in range(1, len(good) - 1, 7)]
    refused = 0
    for damaged in [*flipped(good)[:: len(good) // 40], *cuts]:
        recipe.write_bytes(damaged)
        try:
            assert checked_toml(recipe) in (known, {})  # an empty one is refused by its reader
        except TelescopeError:
            refused += 1
    assert refused > 50


def test_a_config_that_was_edited_says_how_to_use_it(recipe: Path):
    text = recipe.read_text("utf-8").replace("lr = 1.25e-05", "lr = 2.5e-05")
    recipe.write_text(text, "utf-8")
    with pytest.raises(TelescopeError, match="remove its first line"):
        load_config(recipe)
    recipe.write_text(text.partition("\n")[2], "utf-8")
    assert load_config(recipe).actor.lr == 2.5e-5


def test_damage_is_told_and_left_out(recipe: Path, capsys: pytest.CaptureFixture[str]):
    run = recipe.parent
    (run / "checkpoints" / "step_000007").mkdir(parents=True)
    lines = [write_line({"step": step, "reward/score_mean": 0.5}) for step in (1, 2, 3)]
    lines[1] = lines[1].replace("0.5", "0.7")
    (run / "metrics.jsonl").write_text("".join(lines), "utf-8")
    recipe.write_text(recipe.read_text("utf-8").replace("lr = 1.25e-05", "lr = 3e-05"), "utf-8")

    config, rows, end = damage_of(run)
    assert "its checksum differs" in config
    assert rows.endswith("1 damaged lines are left out")
    assert end.endswith("it ends at step 3, before step 7")
    assert Metrics(run / "metrics.jsonl").refresh().series["reward/score_mean"].steps.tolist() == [
        1,
        3,
    ]
    assert RunSettings.read(run).flat == {}
    main(["doctor", str(run)])
    assert capsys.readouterr().err.count("telescope: ") == 3
    main(["compare", str(run)])
    assert capsys.readouterr().err.count("telescope: ") == 3


def test_missing_metrics_of_a_run_with_checkpoints_are_told(recipe: Path):
    run = recipe.parent
    assert damage_of(run) == []
    (run / "checkpoints" / "step_000007").mkdir(parents=True)
    assert damage_of(run) == [
        f"{run / 'metrics.jsonl'} is damaged: it ends at step 0, before step 7"
    ]


def test_a_line_that_a_running_process_has_not_finished_is_no_damage(recipe: Path):
    run = recipe.parent
    (run / "metrics.jsonl").write_text(write_line({"step": 1}) + '{"step": 2, "rew', "utf-8")
    (run / ".lock").touch()
    assert damage_of(run) == [f"{run / 'metrics.jsonl'}: 1 damaged lines are left out"]
    with (run / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert damage_of(run) == []


def test_an_empty_config_is_told(recipe: Path):
    recipe.write_text("")
    assert damage_of(recipe.parent) == [f"{recipe} is empty"]


@pytest.mark.parametrize("odd", ["a folder", "a lost link"])
def test_what_is_no_file_is_told(odd: str, recipe: Path):
    run = recipe.parent
    recipe.unlink()
    for path in (recipe, run / "metrics.jsonl"):
        path.mkdir() if odd == "a folder" else path.symlink_to(run / "nowhere")
    (run / "ledger").write_text("")
    assert [line.replace(f"{run}/", "") for line in run_damage(run)] == [
        "config.toml is damaged: it is not a file",
        "metrics.jsonl is damaged: it is not a file",
        "ledger is damaged: it is not a folder",
    ]
