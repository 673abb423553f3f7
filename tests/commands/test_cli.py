"""The command line: help, one line for every mistake, and how values are read."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from telescope import errors
from telescope.commands import COMMANDS
from telescope.commands.arguments import Parser, parse_with_settings
from telescope.config import fields
from tests.commands.calls import Capture, help_text, refusal


def test_train_help_lists_every_setting_with_its_type_default_and_description(capsys: Capture):
    shown = help_text(capsys, "train", "--help")
    for key, kind, default, description in fields():
        value = "none" if default is None else default
        assert f"--{key} {kind} (default {value})\n        {description}" in shown
    assert "--resume" in shown
    assert help_text(capsys, "train", "-h") == shown
    assert help_text(capsys, "train", "--steps", "3", "--help") == shown


def test_help_lists_the_commands(capsys: Capture):
    shown = help_text(capsys, "--help")
    assert all(f"    {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(capsys: Capture, command: str):
    assert help_text(capsys, command, "--help").startswith(f"usage: telescope {command} ")


def test_help_takes_less_than_0_3_seconds_of_cpu_time():
    """CPU time, because the machine may be busy. Most of it is Python's own start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "telescope", "--help"], check=True, timeout=60, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["eval", "--help"],
        ["export", "--help"],
        ["explain", "--help"],
        ["plan", "--help"],
        ["train", "--stpes", "3"],
        ["train", "nosuch.toml"],
    ],
    ids=" ".join,
)
def test_help_and_mistakes_do_not_wait_for_torch(arguments: list[str]):
    code = (
        "import sys, telescope.commands\n"
        "try:\n    telescope.commands.main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, timeout=60, capture_output=True
    )


def test_the_installed_program_refuses_without_a_traceback():
    program = Path(sys.executable).with_name("telescope")
    done = subprocess.run(
        [program, "train", "--actor.lr", "-1"], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "telescope: command line: actor.lr = -1: input should be greater than 0\n"
    assert done.stdout == ""


def test_a_misspelt_setting_gets_a_suggestion(capsys: Capture):
    told = refusal(capsys, "train", "--actor.lrr", "1")
    assert told == "telescope: command line: no setting `actor.lrr`; did you mean `actor.lr`?\n"
    told = refusal(capsys, "train", "--rollout.batch-sice=4")
    assert "did you mean `rollout.batch_size`?" in told


@pytest.mark.parametrize(
    "arguments", [["--steps"], ["--steps", "--resume"], ["--steps", "--seed", "3"]], ids=" ".join
)
def test_a_missing_value_is_named(capsys: Capture, arguments: list[str]):
    told = refusal(capsys, "train", *arguments)
    assert told == "telescope: --steps needs a value: --steps VALUE\n"


def test_a_second_recipe_is_refused(capsys: Capture):
    for command in ("train", "plan"):
        told = refusal(capsys, command, "a.toml", "b.toml")
        assert f"unexpected argument 'b.toml'; usage: telescope {command}" in told


def test_a_setting_as_verl_writes_it_is_answered_with_ours(capsys: Capture):
    told = refusal(capsys, "train", "my.toml", "algorithm.adv_estimator=grpo")
    assert "no setting `algorithm.adv_estimator`; did you mean `credit.estimator`" in told
    for written in ("actor.lr=1e-6", "+actor.lr=1e-6"):
        told = refusal(capsys, "train", "my.toml", written)
        assert f"'{written}': write a setting as --actor.lr 1e-6; usage: " in told


def test_a_misspelt_option_is_answered_with_the_right_one(capsys: Capture):
    told = refusal(capsys, "train", "my.toml", "--resme")
    assert "no option --resme; did you mean --resume?" in told


def test_another_trainers_switch_is_answered_with_our_setting(capsys: Capture):
    """As in TRL, without a value."""
    told = refusal(capsys, "train", "--bf16", "--steps", "2")
    assert "no setting `bf16`; did you mean `model.dtype`" in told


def test_the_language_may_stand_before_the_command(capsys: Capture):
    assert help_text(capsys, "--lang", "zh", "train", "--help").startswith("用法：telescope train")


def test_help_is_a_command_too(capsys: Capture):
    assert help_text(capsys, "help") == help_text(capsys, "--help")
    assert help_text(capsys, "help", "report") == help_text(capsys, "report", "--help")


def test_a_recipe_that_is_nearly_named_is_suggested(capsys: Capture):
    Path("mine.toml").write_text("")
    assert "no recipe mine (No such file or directory): did you mean `mine.toml`?" in refusal(
        capsys, "train", "mine"
    )
    Path("project").mkdir()
    Path("project/recipe.toml").write_text("")
    assert "did you mean `project/recipe.toml`?" in refusal(capsys, "train", "project")
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/config.toml").write_text("")
    told = refusal(capsys, "train", "runs/mine")
    assert "it is a run: continue it with `telescope train runs/mine/config.toml --resume`" in told


def test_a_run_that_does_not_exist_is_named_by_explain(capsys: Capture):
    assert "no run nosuch: give the folder of a run" in refusal(capsys, "explain", "nosuch")


def test_an_empty_question_is_not_taken_for_a_folder(capsys: Capture):
    assert "the question is empty" in refusal(capsys, "ask", "")


@pytest.mark.parametrize("flag", ["--resume", "--smoke"])
@pytest.mark.parametrize("command", ["plan", "eval"])
def test_flags_of_train_are_refused_elsewhere(capsys: Capture, command: str, flag: str):
    told = refusal(capsys, command, "a.toml", flag)
    assert f"{flag} belongs to `telescope train`; usage: telescope {command}" in told


def test_a_missing_recipe_is_named(capsys: Capture):
    assert "no recipe nosuch.toml" in refusal(capsys, "train", "nosuch.toml")
    assert "did you mean `grpo`, which is shipped?" in refusal(capsys, "train", "grop")


@pytest.mark.parametrize(
    "arguments",
    [["export", "run"], ["report"], ["view", "run", "--prot", "80"]],
    ids=" ".join,
)
def test_an_incomplete_command_is_refused_with_its_usage(capsys: Capture, arguments: list[str]):
    assert f"; usage: telescope {arguments[0]} RUN" in refusal(capsys, *arguments)


def test_a_misspelt_command_gets_a_suggestion(capsys: Capture):
    told = refusal(capsys, "tarin")
    assert told == "telescope: no command `tarin`; did you mean `train`?\n"
    assert "choose one of init, recipes, train," in refusal(capsys, "nosuch")
    assert "no command given: choose one of init, recipes, train," in refusal(capsys)


@pytest.mark.parametrize("command", [["eval"], ["export"]], ids=" ".join)
def test_a_folder_without_a_run_is_named(capsys: Capture, command: list[str], tmp_path: Path):
    rest = ["out"] if command == ["export"] else []
    assert "nosuch" in refusal(capsys, *command, "nosuch", *rest)
    Path("young").mkdir()
    Path("young/config.toml").write_text("")
    told = refusal(capsys, *command, "young", *rest)
    assert "young has no checkpoint yet: train it first" in told
    assert not Path("out").exists()


def test_values_are_read_with_a_space_or_an_equals_sign_and_may_be_negative():
    parser = Parser("telescope test", "")
    parser.add_argument("--flag", action="store_true")
    negative = ["--eval.correct_score", "-1", "--actor.lr", "-1e-3"]
    others = ["--name=a=b", "--rollout.batch-size", "4", "--flag"]
    options, recipe, settings = parse_with_settings(parser, [*negative, "r.toml", *others])
    assert options.flag
    assert recipe == "r.toml"
    assert settings == [
        ("eval.correct_score", "-1"),
        ("actor.lr", "-1e-3"),
        ("name", "a=b"),
        ("rollout.batch_size", "4"),
    ]


@pytest.mark.parametrize("encoding", ["gbk", "ascii", "latin-1", "cp1252"])
def test_a_stream_that_cannot_encode_delta_switches_to_utf_8(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "telescope", "explain", "--lang", "zh"]
    ran = subprocess.run(command, env=environment, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert "δ" in ran.stdout.decode("utf-8")


@pytest.mark.parametrize(
    ("files", "here", "command"),
    [
        ([], False, "pip install 'telescope-rl[peft]'"),
        (["pyproject.toml"], True, "pip install -e '.[peft]'"),
        (["pyproject.toml"], False, "pip install -e '{root}[peft]'"),
    ],
    ids=["wheel", "in the clone", "clone elsewhere"],
)
def test_a_missing_extra_is_installed_as_telescope_was(
    files: list[str], here: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in files:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "telescope" / "errors.py"))
    monkeypatch.chdir(tmp_path if here else "/")
    assert errors.pip_install("peft") == command.format(root=tmp_path)


def test_in_python_a_run_to_export_may_be_a_string(tmp_path: Path):
    from telescope.run.export import export_run

    with pytest.raises(errors.TelescopeError, match="nosuch is not a run folder"):
        export_run("nosuch", str(tmp_path / "out"))
