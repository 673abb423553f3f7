"""telescope dialogue: a log or chat messages as rounds."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from telescope.commands import main
from telescope.explain.dialogue import Dialogue
from tests.commands.calls import Capture, printed, refusal

ROUNDS = [("V(0) 包含 r(0) 吗？", "包含。\n\n---\n\n因为…"), ("为什么？", "x" * 80)]
MESSAGES = [
    {"role": "system", "content": "be nice"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "wait", "tool_calls": [{"id": "1"}]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "a"},
]


@pytest.mark.parametrize("more", [[], ["--round", "1"]])
def test_a_message_cannot_command_the_terminal(more: list[str], tmp_path: Path, capsys: Capture):
    chat = [{"role": role, "content": "a\x1b[31m\tb"} for role in ("user", "assistant")]
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    said = printed(capsys, "dialogue", str(tmp_path / "chat.json"), *more)
    assert "用户：a␛[31m\tb\n" in said
    assert "\x1b" not in said


def test_a_log_is_listed_shown_and_given_as_json(tmp_path: Path, capsys: Capture):
    file = str(Dialogue.start(tmp_path, datetime(2026, 11, 16)).save(ROUNDS))
    listed = printed(capsys, "dialogue", file)
    assert listed.splitlines() == [
        "  1  用户：V(0) 包含 r(0) 吗？",
        "     助手：包含。 …",
        "  2  用户：为什么？",
        f"     助手：{'x' * 70}…",
    ]
    question, answer = ROUNDS[0]
    assert (
        printed(capsys, "dialogue", file, "--round", "1") == f"用户：{question}\n助手：{answer}\n"
    )
    assert json.loads(printed(capsys, "dialogue", file, "--json")) == [
        {"question": question, "answer": answer} for question, answer in ROUNDS
    ]


@pytest.mark.parametrize("name", ["chat.json", "chat.jsonl", "object.json"])
def test_chat_messages_become_a_log(tmp_path: Path, capsys: Capture, name: str):
    texts = {
        "chat.json": json.dumps(MESSAGES),
        "chat.jsonl": "\n".join(map(json.dumps, MESSAGES)),
        "object.json": json.dumps({"messages": MESSAGES}),
    }
    Path(name).write_text(texts[name], "utf-8")
    main(["dialogue", name, "--save-as", "codex_YYYYMMDD_HHMMSS.md"])
    file = Path(capsys.readouterr().err.strip())
    assert Dialogue.read(file).rounds == [("q", "a")]
    main(["dialogue", name, "--save-as", str(file)])
    assert Dialogue.read(file).rounds == [("q", "a"), ("q", "a")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nosuch.md", None, "cannot read nosuch.md"),
        ("nosuch.json", None, "cannot read nosuch.json"),
        ("notes.md", "# Notes", "is not a dialogue log"),
        ("chat.json", "[", "is not valid JSON"),
        ("chat.json", "{}", "has no messages: give a list"),
        ("chat.json", '["hello"]', 'a message is {"role": "user", "content": "…"}, not \'hello\''),
    ],
)
def test_a_file_that_is_no_dialogue_gets_one_line(
    capsys: Capture, name: str, text: str | None, message: str
):
    if text is not None:
        Path(name).write_text(text, "utf-8")
    assert message in refusal(capsys, "dialogue", name)


def test_a_round_that_is_not_there_is_refused(tmp_path: Path, capsys: Capture):
    file = str(Dialogue.start(tmp_path, datetime(2026, 11, 16)).save(ROUNDS))
    assert "has rounds 1 to 2" in refusal(capsys, "dialogue", file, "--round", "3")
