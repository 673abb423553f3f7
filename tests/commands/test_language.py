"""Help and errors in Chinese: every text that a user of a command meets has an entry."""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import telescope
from telescope.chinese import catalogue, chinese
from telescope.commands import COMMANDS
from telescope.commands.language import choose, from_environment, language
from tests.commands.calls import help_text, refusal

PACKAGE = Path(telescope.__file__).parent
COMMAND_FILES = sorted((PACKAGE / "commands").glob("*.py"))
EXPLAIN_FILES = sorted((PACKAGE / "explain").rglob("*.py"))
OTHER_FILES = [
    PACKAGE / "ledger" / "reader.py",
    *(PACKAGE / "run" / f"{name}.py" for name in ("live", "evaluate", "export", "saved")),
    *(PACKAGE / "viewer").glob("*.py"),
]
START_FILES = [
    PACKAGE / name
    for name in (
        "config/load.py",
        "config/recipes.py",
        "data/files.py",
        "run/folder.py",
        "roles/functions.py",
        "roles/calling.py",
    )
]
"""What the start of a run may refuse. Rules between settings (config/checks.py) are English."""
PASSED_ON = {"{}: {}", "{}{}", "{}; usage: {}"}
"""Errors that only carry another one."""
HAN = re.compile("[一-鿿]")


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    yield
    choose([])


def template(node: ast.expr) -> str | None:
    """The text of a string or an f-string, with {} for its parts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        return "".join(map(str, parts))
    return None


def calls(file: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            yield node


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def errors(files: list[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        for call in calls(file):
            is_parser = name_of(call) == "error" and getattr(call.func, "value", None) is not None
            is_parser = is_parser and getattr(call.func.value, "id", "") == "parser"
            if call.args and (name_of(call) == "TelescopeError" or is_parser):
                said = template(call.args[0])
                if said is not None and said not in PASSED_ON:
                    yield file.name, said


def helps(files: list[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        for call in calls(file):
            texts = [keyword.value for keyword in call.keywords if keyword.arg == "help"]
            if name_of(call) == "Parser" and len(call.args) > 1:
                texts.append(call.args[1])
            if name_of(call) == "add_argument_group":
                texts += call.args
            for node in texts:
                said = template(node)
                if said:
                    yield file.name, said


def without_entry(texts: Iterator[tuple[str, str]]) -> set[tuple[str, str]]:
    """Texts that chinese.toml should have and has not: add them there."""
    return {(file, text) for file, text in texts if text not in catalogue()}


def test_every_error_of_the_commands_has_a_chinese_entry() -> None:
    assert (
        without_entry(errors([*COMMAND_FILES, *EXPLAIN_FILES, *OTHER_FILES, *START_FILES])) == set()
    )


def test_every_help_text_has_a_chinese_entry() -> None:
    assert without_entry(helps(COMMAND_FILES)) == set()
    assert set(COMMANDS.values()) <= catalogue().keys()


def test_entries_hold_the_same_parts_and_are_chinese() -> None:
    for en, zh in catalogue().items():
        if "{}" in en:
            count = len(re.findall(r"(?<!\{)\{\d?\}", zh))
            assert count == en.count("{}"), en
        assert HAN.search(zh), en
        assert not en.endswith(".") or zh.endswith("。"), en


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "zh_TW"}, "zh"),
        ({"LC_ALL": "", "LANG": "zh"}, "zh"),
    ],
)
def test_the_locale_decides(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert from_environment() == expected


@pytest.mark.parametrize("arguments", [["--lang", "zh"], ["--lang=zh"], ["x", "--lang", "zh"]])
def test_the_option_wins_over_the_locale(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    choose(arguments)
    assert language() == "zh"
    choose([])
    assert language() == "en"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("--token 99: this response has tokens 0 to 5", "--token 99：这条回答的 token 是 0 到 5"),
        (
            "x.toml: values = [1]: give a list with one number per token",
            "x.toml: values = [1]：请给列表，每个 token 一个数",
        ),
        (
            "argument --token: invalid int value: 'x'; usage: telescope explain",
            "--token：'x' 不是整数；用法：telescope explain",
        ),
        ("no command `expl`; did you mean `explain`?", "没有命令 `expl`；是不是 `explain`？"),
        (
            "lam is 1 in response 0 and 0.9 in response 3: a batch has one, write it once beside "
            "the responses",
            "lam 在第 0 条回答里是 1，在第 3 条里是 0.9：一批只有一个，写一次，放在 responses 外面",
        ),
        (
            "command line: no setting `actor.learning_rate`; did you mean `actor.lr`?",
            "命令行：没有设置 `actor.learning_rate`；是不是 `actor.lr`？",
        ),
        (
            "command line: actor.lr = -1: input should be greater than 0",
            "命令行：actor.lr = -1：应大于 0",
        ),
        (
            "my.toml: steps = 'x': input should be a valid integer, unable to parse string as an "
            "integer",
            "my.toml: steps = 'x'：应是整数",
        ),
        (
            "reward function 'f' returned 3 for 8 responses: return one score for each",
            "奖励函数 'f' 对 8 条回答返回了 3：请每条返回一个得分",
        ),
        ("something nobody wrote an entry for", "something nobody wrote an entry for"),
    ],
)
def test_an_error_is_filled_in(said: str, expected: str) -> None:
    assert chinese(said) == expected


@pytest.mark.parametrize("command", ["", "explain", "report", "view", "eval", "export", "sweep"])
def test_the_help_is_chinese(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = help_text(capsys, *([command] if command else []), "--help", "--lang", "zh")
    assert out.startswith("用法：telescope")
    for line in out.splitlines():
        is_help = re.match(r"  +\S.*?  +(\S.*)$", line)
        if is_help and is_help[1] not in COMMANDS:
            assert HAN.search(is_help[1]), line


def test_an_error_is_chinese_in_a_chinese_locale(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    error = refusal(capsys, "explain", "--token", "99")
    assert error == "telescope: --token 99：这条回答的 token 是 0 到 5\n"


def test_an_error_that_quotes_a_file_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text('"\\u001b[31m\\u202e" = 1\n')
    (tmp_path / "checkpoints" / "step_000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_000001" / "checkpoint.json").write_text("{}")
    assert "no setting `␛[31m⟨u+202e⟩`" in refusal(capsys, "eval", str(tmp_path), "--lang", "en")


@pytest.mark.parametrize("command", ["view", "report", "eval", "export"])
def test_every_command_takes_the_language(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is not there, in Chinese by the option and in English without it."""
    more = [str(tmp_path / "out")] if command == "export" else []
    for lang, said in ((["--lang", "zh"], True), ([], False)):
        error = refusal(capsys, command, str(tmp_path / "nope"), *more, *lang)
        assert "nope" in error
        assert bool(HAN.search(error)) == said


def test_the_help_is_fast_and_imports_no_torch() -> None:
    program = (
        "import sys\nfrom telescope.commands import main\n"
        "try: main(['--help', '--lang', 'zh'])\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    best = 9.0
    for _ in range(3):
        before = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        best = min(best, time.perf_counter() - before)
        assert done.returncode == 0, done.stderr
    assert best < 2.0  # 0.3 s on an idle machine; others may be busy on this one


def test_help_of_an_argparse_default_is_known() -> None:
    """argparse's own words, which it would take from gettext."""
    parser = argparse.ArgumentParser()
    titles = [group.title for group in parser._action_groups]
    assert set(titles) <= catalogue().keys()
    assert parser._actions[0].help in catalogue()
