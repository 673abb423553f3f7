"""The command line reports a mistake of the user in one line, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from telescope.commands import main
from telescope.config import to_toml
from telescope.errors import TelescopeError
from telescope.run.evaluate import evaluate_run
from telescope.trainer import Trainer
from tests.refusals import Job


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
    job: Job, tmp_path: Path, overrides: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def score(prompts): return [0.0] * len(prompts)")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(job(("reward.functions", f"{rewards}:score"))), "utf-8")
    with pytest.raises(SystemExit) as end:
        main(["train", str(recipe), *overrides])
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert printed.err.startswith("telescope: ")
    assert told in printed.err
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.out + printed.err


def test_eval_of_a_run_without_held_out_prompts_says_what_to_set(job: Job, tmp_path: Path):
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def score(prompts): return [0.0] * len(prompts)")
    config = job(("reward.functions", f"{rewards}:score"), ("steps", "1"))
    Trainer(config).fit()
    with pytest.raises(TelescopeError, match=r"no held-out prompts: set data\.eval_files"):
        evaluate_run(config.run_dir)
