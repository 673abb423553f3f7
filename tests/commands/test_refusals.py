"""The command line reports a mistake of the user in one line, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.commands.arguments import Setting
from telescope.config import to_toml
from telescope.errors import TelescopeError
from telescope.run.evaluate import evaluate_run
from telescope.trainer import Trainer
from tests.commands.calls import Capture, refusal
from tests.refusals import Job


@pytest.fixture
def reward(tmp_path: Path) -> Setting:
    """A reward that scores everything 0."""
    file = tmp_path / "rewards.py"
    file.write_text("def score(prompts): return [0.0] * len(prompts)")
    return ("reward.functions", f"{file}:score")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["--model.path", "/nosuch/model"], "/nosuch/model does not exist"),
        (["--data.files", "nosuch.jsonl"], "no data file nosuch.jsonl"),
        (["--reward.functions", "nosuch.py:score"], "there is no file nosuch.py"),
        (["--reward.functions", "127.0.0.1:9/x"], "a server with its http://"),
        (
            ["--reward.functions", "http://[::bad/x?key=1"],
            "http://[::bad/x is not an address of a reward server: Invalid IPv6 URL",
        ),
        (
            ["--reward.functions", "http://host:99999/x"],
            "host:99999/x is not an address of a reward server: Port out of range",
        ),
        (["--name", "x" * 300], "File name too long; "),
        (["--device", "gpu"], "device = 'gpu'"),
        (["--data.max_prompt_tokens", "1"], "no prompt is left"),
    ],
)
def test_the_command_line_tells_it_in_one_line(
    job: Job, reward: Setting, tmp_path: Path, overrides: list[str], told: str, capsys: Capture
):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(job(reward)), "utf-8")
    assert told in refusal(capsys, "train", str(recipe), *overrides)


def test_eval_of_a_run_without_held_out_prompts_says_what_to_set(job: Job, reward: Setting):
    config = job(reward, ("steps", "1"))
    Trainer(config).fit()
    with pytest.raises(TelescopeError, match=r"no held-out prompts: set data\.eval_files"):
        evaluate_run(config.run_dir)
