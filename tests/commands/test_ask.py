from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from telescope.commands import main
from telescope.explain.dialogue import Dialogue
from tests.commands.calls import refusal
from tests.viewer.fake import fake_run


def ask(capsys: Any, *arguments: str) -> str:
    main(["ask", *arguments])
    text: str = capsys.readouterr().out
    return text


def reply(capsys: Any, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(capsys, *arguments, "--json"))
    return found


def test_json_has_the_question_and_the_three_nearest(capsys: Any) -> None:
    found = reply(capsys, "V_t 是写 token 之前还是之后的估值？")
    assert found["answered"] == "q9"
    assert found["nearest"][0] == "q9"
    assert len(found["nearest"]) == 3
    assert (found["lang"], found["level"], found["token"], found["changed"]) == (
        "zh",
        "expert",
        None,
        {},
    )
    assert found["text"]


def test_a_question_without_an_answer_is_null(capsys: Any) -> None:
    found = reply(capsys, "how do I cook pasta")
    assert found["answered"] is None
    assert len(found["nearest"]) == 3


def test_after_supplies_the_previous_question(capsys: Any) -> None:
    found = reply(capsys, "λ=1 呢？", "--after", "why not simply A_t = δ_t")
    assert (found["answered"], found["changed"]) == ("q12", {"lam": 1.0})
    found = reply(
        capsys, "what about token 2", "--after", "why not simply A_t = δ_t", "--after", "λ=1"
    )
    assert (found["token"], found["changed"]) == (2, {"lam": 1.0})


def test_lang_and_level_are_as_asked_for(capsys: Any) -> None:
    found = reply(capsys, "白化是什么意思", "--lang", "en", "--level", "kid")
    assert (found["lang"], found["level"]) == ("en", "kid")


def test_a_recorded_response_gives_its_numbers(capsys: Any, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    text = ask(capsys, "why not simply A = δ", str(run), "--token", "3", "--lang", "en")
    assert "0.102" in text


def test_typed_numbers_give_their_numbers(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "numbers.toml"
    file.write_text("score = 1.0\nvalues = [0.3, 0.4, 0.6]\nlam = 1.0\n", "utf-8")
    found = reply(capsys, "why not simply A = δ", "--numbers", str(file))
    assert "0.7" in found["text"]


def test_messages_from_a_pipe_are_a_conversation(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = "why not simply A_t = δ_t\n\nλ=1 呢？\n:help\n:quit\nnever read\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    text = ask(capsys)
    assert "λ 换成 1" in text
    assert ":save" in text
    assert "?" not in text.splitlines()[0][:2]


def test_a_pipe_with_json_gives_a_line_for_every_message(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("why not simply A_t = δ_t\nλ=1?\n"))
    lines = ask(capsys, "--json").splitlines()
    assert [json.loads(line)["answered"] for line in lines] == ["q12", "q12"]


def test_save_and_continue(capsys: Any, tmp_path: Path) -> None:
    ask(capsys, "why not simply A_t = δ_t", "--save", str(tmp_path))
    (path,) = tmp_path.glob("telescope_*.md")
    ask(capsys, "λ=1 呢？", "--continue", str(path))
    rounds = Dialogue.read(path).rounds
    assert [question for question, _ in rounds] == ["why not simply A_t = δ_t", "λ=1 呢？"]
    assert "λ = 1" in rounds[1][1]


def test_save_within_a_conversation_keeps_the_rounds_before(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = f"what does bootstrap mean\n:save {tmp_path}\nwhy\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    ask(capsys)
    (path,) = tmp_path.glob("telescope_*.md")
    assert len(Dialogue.read(path).rounds) == 2


def test_mistakes_are_one_line(capsys: Any, tmp_path: Path) -> None:
    assert "--token" in refusal(capsys, "ask", "why", "--token", "99")
    assert "empty" in refusal(capsys, "ask", " ")
    assert "leave one out" in refusal(capsys, "ask", "why", "--save", "a", "--continue", "b")
    assert "dialogue log" in refusal(capsys, "ask", "why", "--continue", str(tmp_path / "no.md"))
    assert "http" in refusal(capsys, "ask", "what is whitening", "--llm", "ftp://x", "m")


def test_asking_imports_no_torch() -> None:
    program = (
        "import sys\nfrom telescope.commands import main\nmain(['ask', 'what is whitening'])\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_the_run_may_stand_before_the_question(capsys: Any, tmp_path: Path) -> None:
    """As it does in the other commands."""
    run = str(fake_run(tmp_path / "run"))
    question = "what is the task?"
    assert ask(capsys, run, question) == ask(capsys, question, run)
