"""The dialogue log: its layout to the byte, and every message verbatim."""

import re
from datetime import datetime

import pytest

from telescope.errors import TelescopeError
from telescope.explain.dialogue import rounds_of, save_dialogue

NOW = datetime(2026, 11, 15, 9, 5, 7)


def test_the_layout_is_exactly_this(tmp_path):
    path = save_dialogue(tmp_path, [("V(0) 包含 r(0) 吗？", "包含。"), ("why?", "two\nlines")], NOW)
    assert path.name == "telescope_20261115_090507.md"
    assert path.read_bytes().decode("utf-8") == (
        "# Chat Dialogue Log\n\n## 对话时间\n\n2026-11-15 09:05:07\n\n---\n\n## 对话内容\n\n"
        "### 问题 1\n用户：V(0) 包含 r(0) 吗？  \n助手：包含。\n\n---\n\n"
        "### 问题 2\n用户：why?  \n助手：two\nlines\n"
    )


def test_messages_stay_as_they_are(tmp_path):
    rounds = [
        ("---\n### 问题 9\r\n  spaces  ", "a\u202eb\x1b[31m\n\n---\n\n" + "长" * 5000),
        ("", ""),
    ]
    text = save_dialogue(tmp_path, rounds, NOW).read_bytes().decode("utf-8")
    for question, answer in rounds:
        assert f"用户：{question}  \n助手：{answer}\n" in text


def test_there_is_one_rule_in_the_head_and_one_between_rounds(tmp_path):
    text = save_dialogue(tmp_path, [("q", "a")] * 4, NOW).read_text("utf-8")
    assert len(re.findall(r"^---$", text, re.MULTILINE)) == 4
    assert re.findall(r"^### 问题 (\d+)$", text, re.MULTILINE) == ["1", "2", "3", "4"]


def test_the_request_to_save_is_the_last_round(tmp_path):
    path = save_dialogue(tmp_path, [("q", "a")], NOW, request="请保存对话")
    assert path.read_text("utf-8").endswith(
        f"### 问题 2\n用户：请保存对话  \n助手：已保存：{path}\n"
    )


def test_nothing_is_overwritten_and_header_and_name_agree(tmp_path):
    first, second = (
        save_dialogue(tmp_path / "new" / "folder", [("q", a)], NOW) for a in ("1", "2")
    )
    assert (first.name, second.name) == (
        "telescope_20261115_090507.md",
        "telescope_20261115_090508.md",
    )
    assert "2026-11-15 09:05:08" in second.read_text("utf-8")


def test_system_and_tool_turns_are_left_out():
    turns = [
        ("system", "be nice"),
        ("user", "q1"),
        ("tool", "42"),
        ("assistant", "a1"),
        ("assistant", "more"),
        ("user", "q2"),
    ]
    assert rounds_of({"role": role, "content": text} for role, text in turns) == [
        ("q1", "a1\n\nmore"),
        ("q2", ""),
    ]


def test_only_what_follows_the_last_tool_call_is_the_answer():
    call = {"role": "assistant", "content": "let me look", "tool_calls": [{"id": "1"}]}
    plain = {"role": "assistant", "content": "searching <search>x</search>"}
    found = {"role": "tool", "content": "42"}
    final = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "It is "},
            "42.",
        ],
    }
    asked = {
        "role": "user",
        "content": [
            {"type": "text", "text": "what "},
            {"type": "image_url", "image_url": {}},
            {"type": "text", "text": "is it?"},
        ],
    }
    assert rounds_of([asked, call, found, plain, found, final]) == [("what is it?", "It is 42.")]
    assert rounds_of([asked, {"role": "assistant", "content": None, "tool_calls": [1]}, found]) == [
        ("what is it?", "")
    ]
    use = {
        "role": "assistant",
        "content": [{"type": "text", "text": "wait"}, {"type": "tool_use", "name": "search"}],
    }
    result = {"role": "user", "content": [{"type": "tool_result", "content": "42"}]}
    assert rounds_of([asked, use, result, final]) == [("what is it?", "It is 42.")]
    more = {
        "role": "user",
        "content": [{"type": "tool_result", "content": "42"}, {"type": "text", "text": "And now?"}],
    }
    thought = {
        "role": "assistant",
        "content": [
            {"type": "reasoning_text", "text": "hm"},
            {"type": "output_text", "text": "It is 43."},
        ],
    }
    assert rounds_of([asked, use, more, thought]) == [
        ("what is it?", ""),
        ("And now?", "It is 43."),
    ]


def test_a_folder_that_cannot_be_written_gets_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TelescopeError, match="cannot write a dialogue into"):
        save_dialogue(tmp_path / "file", [("q", "a")], NOW)
