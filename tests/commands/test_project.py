"""telescope init, recipes, completion and train --dry-run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from telescope.commands import main
from telescope.commands.completion import words_of_commands
from telescope.config import load_config
from telescope.config.recipes import shipped_recipes
from tests.commands.calls import Capture, help_text, printed, refusal
from tests.docs.examples import commands


def documented(command: str) -> list[str]:
    """The words of the first such command in the docs."""
    return next(words for words in commands("many-runs.md") if words[0] == command)


def test_init_writes_a_project_and_never_overwrites(capsys: Capture):
    command = documented("init")
    assert "sums: recipe.toml, reward.py, train.jsonl, eval.jsonl" in printed(capsys, *command)
    config = load_config(Path("sums/recipe.toml"))
    assert (config.name, config.model.path, config.credit.estimator) == ("sums", "builtin", "grpo")
    first = json.loads(Path("sums/train.jsonl").read_text("utf-8").splitlines()[0])
    assert set(first) == {"prompt", "answer"}
    Path("sums/recipe.toml").unlink()
    Path("sums/reward.py").write_text("mine")
    assert "sums/reward.py exists already" in refusal(capsys, *command)
    assert Path("sums/reward.py").read_text() == "mine"
    assert not Path("sums/recipe.toml").exists()


def test_init_asks_nothing_without_a_terminal(capsys: Capture):
    Path("own.jsonl").write_text('{"prompt": "1+1="}\n')
    printed(capsys, "init", "p", "--data", "own.jsonl")
    config = load_config(Path("p/recipe.toml"))
    assert config.data.files == [str(Path("own.jsonl").absolute())]
    assert config.credit.estimator == "gae"
    Path("model").mkdir()
    printed(capsys, "init", "r", "--data", "*.jsonl", "--model", "model")
    config = load_config(Path("r/recipe.toml"))
    assert config.data.files == [str(Path("*.jsonl").absolute())]
    assert config.model.path == str(Path("model").absolute())
    assert "no data file nothing.jsonl" in refusal(capsys, "init", "q", "--data", "nothing.jsonl")


def test_the_reward_of_a_new_project_reads_numbers_and_texts(capsys: Capture):
    printed(capsys, "init", "p")
    space: dict[str, Any] = {}
    exec(Path("p/reward.py").read_text("utf-8"), space)
    assert space["correct"]([], ["so 5", "it is 5", "none"], [5, "5", 5]) == [1.0, 1.0, 0.0]


def test_init_asks_three_questions_at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    answers = iter(["smollm2", "", "dpo", "grpo"])  # an unknown algorithm is asked again
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    printed(capsys, "init", "p")
    config = load_config(Path("p/recipe.toml"))
    assert (config.model.path, config.credit.estimator) == ("smollm2", "grpo")


@pytest.mark.slow
def test_a_dry_run_shows_the_prompts_and_leaves_no_folder(tiny_model: Path, capsys: Capture):
    main(["init", "sums", "--model", "builtin"])
    tiny = ["--model.path", str(tiny_model)]
    shown = printed(capsys, *documented("train"), *tiny)
    assert "reward     1 × correct" in shown
    assert "data       518 prompts of up to 7 tokens" in shown
    assert "peak of each phase, GiB" in shown
    (text,) = re.findall(r"--- prompt 1, 7 tokens\n(.*)", shown)
    assert f'"prompt": "{text}"' in Path("sums/train.jsonl").read_text("utf-8")
    assert "the run would be in runs/sums" in shown
    assert not Path("runs").exists()
    main(["train", "sums/recipe.toml", *tiny, "--smoke", "--device", "cpu"])
    assert "trained 2 steps: runs/sums-smoke-1" in capsys.readouterr().out


def test_prompts_of_a_dry_run_cannot_command_the_terminal(
    tiny_model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.decode", lambda *_: "\x1b[31m\na")
    tiny = ["--model.path", str(tiny_model), "--rollout.max_response_tokens", "6"]
    shown = printed(capsys, "train", "--dry-run", *tiny)
    assert "tokens\n␛[31m\na\n" in shown
    assert "\x1b" not in shown


def test_recipes_lists_and_prints_what_is_shipped(capsys: Capture):
    listed = printed(capsys, "recipes")
    assert [line.split()[0] for line in listed.splitlines()] == list(shipped_recipes())
    assert printed(capsys, "recipes", "grpo") == shipped_recipes()["grpo"].read_text("utf-8")
    assert "no recipe `grop`; there is: grpo" in refusal(capsys, "recipes", "grop")


def test_the_grpo_recipe_has_groups_no_critic_and_the_kl_in_the_loss():
    config = load_config(shipped_recipes()["grpo"])
    assert not config.credit.by_critic
    assert config.rollout.n > 1
    assert config.credit.kl_coef == 0 < config.actor.kl_loss_coef


def test_completion_knows_every_option_of_the_help(capsys: Capture):
    known = words_of_commands()
    for command in ("train", "compare", "explain"):
        options = set(
            re.findall(r"^  +(?:-\w, )?(--[\w.-]+)", help_text(capsys, command, "--help"))
        )
        assert options <= set(known[command])
    assert {"--dry-run", "--actor.lr", "calculator"} <= set(known["train"])
    assert "--json" in known["compare"]


@pytest.mark.parametrize(
    ("shell", "program"),
    [
        (
            "bash",
            "source ./script; COMP_WORDS=(telescope train --actor.lr_); COMP_CWORD=2; _telescope; "
            'echo "${COMPREPLY[@]}"',
        ),
        ("fish", 'source ./script; complete -C "telescope train --actor.lr_"'),
        (
            "zsh",
            "compdef() { }; _files() { }; compadd() { print -l -- $@ | grep actor.lr_ }; "
            "source ./script; words=(telescope train x) CURRENT=3 _telescope",
        ),
    ],
)
def test_the_script_completes_a_setting(shell: str, program: str, capsys: Capture):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    Path("script").write_text(printed(capsys, "completion", shell), "utf-8")
    done = subprocess.run([shell, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--actor.lr_min"]
