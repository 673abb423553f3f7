"""Named evaluation sets, accuracy by part and by column, and the answers on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope import Trainer, ledger
from telescope.commands import main
from telescope.config import load_config, smoke, to_toml
from telescope.errors import TelescopeError
from tests.refusals import edit_config, write_jsonl

REWARD = """
def has_two(completions, **columns):
    return [float("2" in text) for text in completions]

def always(completions, **columns):
    return [1.0 for _ in completions]

def never(completions, **columns):
    return [0.0 for _ in completions]
"""

NOTHING_HELD_OUT = [
    ("eval.sets", "{}"),
    ("data.eval_files", ""),
    ("eval.by", "none"),
    ("eval.every", "1"),
    ("eval.best", "eval/greedy_score"),
]


@pytest.fixture
def recipe(tmp_path: Path, make_config) -> Path:
    """Three prompts of two levels, and two sets: one with the run's reward, one with its own."""
    rows = [
        {"prompt": f"请问{i}+1=2？", "level": level}
        for i, level in enumerate(["easy", "hard", "easy"])
    ]
    data = write_jsonl(tmp_path / "prompts.jsonl", rows)
    other = write_jsonl(tmp_path / "other.jsonl", [{"prompt": "请问1+1=2？"}] * 2)
    (tmp_path / "rewards.py").write_text(REWARD, "utf-8")
    config = make_config(
        ("steps", "1"),
        ("data.files", str(data)),
        ("data.eval_files", str(data)),
        ("data.max_prompt_tokens", "16"),
        ("reward.functions", f"{tmp_path / 'rewards.py'}:has_two"),
        ("eval.samples", "3"),
        ("eval.by", "level"),
    )
    path = tmp_path / "recipe.toml"
    sets = f"""
[eval.sets.same]
files = ["{other}"]

[eval.sets.free]
files = ["other.jsonl"]
functions = ["rewards.py:always", "rewards.py:never"]
prompts = 1
"""
    text = to_toml(config).replace("[eval.sets]\n", "")
    path.write_text(text + sets, "utf-8")
    return path


def test_each_set_has_its_own_reward_and_its_own_metrics(recipe: Path) -> None:
    config = load_config(recipe)
    found = Trainer(config).fit()
    assert found["eval/free/greedy_part/always"] == 1.0
    assert found["eval/free/greedy_part/never"] == 0.0
    assert found["eval/free/greedy_accuracy"] == 1.0  # 1 + 0 reaches 1
    by_level = [found[f"eval/greedy_accuracy/{level}"] for level in ("easy", "hard")]
    assert found["eval/greedy_accuracy"] == pytest.approx((2 * by_level[0] + by_level[1]) / 3)
    assert "eval/same/greedy_accuracy/easy" not in found  # that set has no levels

    rows = ledger.reader.read(config.run_dir, 1, kind="completions").to_pylist()
    assert ledger.reader.steps(config.run_dir, "completions") == [0, 1]
    greedy = [row for row in rows if row["set"] == "" and row["kind"] == "greedy"]
    assert [row["prompt_index"] for row in greedy] == [0, 1, 2]
    assert [row["correct"] for row in greedy] == ["2" in row["response"] for row in greedy]
    (free,) = [row for row in rows if row["set"] == "free" and row["kind"] == "greedy"]
    assert dict(free["parts"]) == {"always": 1.0, "never": 0.0}
    assert free["score"] == 1.0


def test_a_saved_run_keeps_its_sets_and_answers_can_be_left_out(recipe: Path) -> None:
    config = load_config(recipe, [("eval.completions", "false"), ("steps", "0")])
    trainer = Trainer(config)
    trainer.fit()
    assert load_config(config.run_dir / "config.toml") == config
    assert ledger.reader.steps(config.run_dir, "completions") == []
    assert smoke(config).eval.sets["same"].prompts == 8


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (NOTHING_HELD_OUT, "there are none, because there are no held-out prompts"),
        ([("eval.by", "age")], "eval.by = 'age' is no column of the held-out prompts"),
        ([("eval.sets", '{a = {files = ["nowhere.jsonl"]}}')], "no data file nowhere.jsonl"),
        ([("eval.sets", '{"a b" = {files = ["x"]}}')], "eval.sets: 'a b' becomes a part"),
        ([("eval.sets", "{a = {}}")], "eval.sets.a.files is missing"),
        ([("eval.sets.a.prompts", "3")], "command line: eval.sets.a.files is missing"),
        ([("eval.sets", '{a = {files = ["x"], reward = "f"}}')], "eval.sets.a.reward`: a set has"),
        ([("eval.sets.a", "3")], "eval.sets.a = 3"),
        ([("eval.sets", '{a = {files = ["x"], weights = {b = 1}}}')], "does nothing without"),
    ],
)
def test_mistakes_in_sets_are_named(
    settings: list[tuple[str, str]], reason: str, recipe: Path
) -> None:
    with pytest.raises(TelescopeError) as refused:
        Trainer(load_config(recipe, settings))
    assert reason in str(refused.value)


def test_code_of_a_set_is_run_only_if_it_is_trusted(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(recipe)
    Trainer(config).fit()
    reward = recipe.with_name("rewards.py")
    stranger = reward.with_name("stranger.py")
    stranger.write_text(REWARD, "utf-8")
    edit_config(config.run_dir / "config.toml", f"{reward}:always", f"{stranger}:always")
    with pytest.raises(SystemExit):
        main(["eval", str(config.run_dir)])
    assert "eval.sets.free.functions" in capsys.readouterr().err
