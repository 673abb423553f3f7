"""The examples of «Your model, data and reward» and of «Tools and turns» do what the pages say."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import tomli_w

from telescope.commands import main
from telescope.config import DataConfig, load_config, merge, validate
from telescope.data.arithmetic import make_tokenizer
from telescope.data.loader import PromptSet
from telescope.rollout.environments import Environment
from telescope.trainer import Trainer
from tests import ROOT
from tests.docs.examples import block, commands
from tests.refusals import write_jsonl


@pytest.mark.slow
def test_the_recipe_and_its_reward_train(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tiny model and data in place of Qwen's and of the parquet files."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(4)]
    recipe = block("train.md", "# my.toml").replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model))
    for name in ("train", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    Path("my.toml").write_text(recipe.replace(".parquet", ".jsonl"), "utf-8")
    Path("my_rewards.py").write_text(block("train.md", "# my_rewards.py"), "utf-8")
    small = [("steps", "1"), ("rollout.batch_size", "4"), ("rollout.max_response_tokens", "4")]
    config = load_config("my.toml", [*small, ("model.dtype", "float32"), ("eval.samples", "4")])
    metrics = Trainer(config).fit()
    assert 0 <= metrics["reward/exact_match"] <= 1
    assert (tmp_path / "runs/my-run/checkpoints/step_000001").is_dir()


@pytest.mark.slow
def test_the_commands_run_one_after_the_other(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"请问{a}+1={a + 1}？", "answer": str(a + 1)} for a in range(4)]
    for name in ("train", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    Path("my_rewards.py").write_text(block("train.md", "# my_rewards.py"), "utf-8")
    small = {"steps": 1, "model": {"path": str(tiny_model), "dtype": "float32"}}
    small |= {"rollout": {"batch_size": 4, "max_response_tokens": 4}, "eval": {"samples": 4}}
    recipe = merge(
        tomllib.loads(block("train.md", "# my.toml").replace(".parquet", ".jsonl")), small
    )
    Path("my.toml").write_text(tomli_w.dumps(recipe), "utf-8")
    for words in commands("train.md"):
        own_name = ["--name", "other"] if "--actor.lr" in words else []
        main([*words, *own_name])
    made = {path.name for path in Path("runs").iterdir()}
    assert made == {"my-run", "my-run-smoke-1", "other"}
    assert Path("exported/critic/config.json").is_file()


def test_the_schedule_is_valid_and_ends_above_zero() -> None:
    config = validate(tomllib.loads(block("train.md", "# schedule.toml")))
    assert (config.actor.schedule, config.actor.lr_min) == ("cosine", 1e-7)
    assert config.model.reference_path == "my-sft-model"


def test_the_unfinished_message_is_continued() -> None:
    page = (ROOT / "docs/train.md").read_text("utf-8")
    (row,) = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}"
    prompts = PromptSet([json.loads(row)], tokenizer, DataConfig())
    assert prompts.texts == ["What is 2+3?<eos>The answer is"]


def test_the_dice_roll_until_the_policy_asks_no_more() -> None:
    space: dict[str, type[Environment]] = {}
    exec(block("tools.md", "import random"), space)
    game = space["Dice"].__new__(space["Dice"])
    state = game.reset("roll", {"seed": 0})
    shown = game.step(state, "<roll></roll>")
    assert re.search(r"[1-6]", str(shown))
    assert game.step(state, "done") is None
