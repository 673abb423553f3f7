"""The dialogue log: its layout to the byte, and every message verbatim."""

import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telescope.errors import TelescopeError
from telescope.explain.dialogue import Dialogue
from telescope.explain.messages import rounds_of

NOW = datetime(2026, 11, 15, 9, 5, 7)


def test_the_layout_is_exactly_this(tmp_path):
    path = Dialogue.start(tmp_path, NOW).save(
        [("V(0) 包含 r(0) 吗？", "包含。"), ("why?", "two\nlines")]
    )
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
    text = Dialogue.start(tmp_path, NOW).save(rounds).read_bytes().decode("utf-8")
    for question, answer in rounds:
        assert f"用户：{question}  \n助手：{answer}\n" in text


def test_there_is_one_rule_in_the_head_and_one_between_rounds(tmp_path):
    text = Dialogue.start(tmp_path, NOW).save([("q", "a")] * 4).read_text("utf-8")
    assert len(re.findall(r"^---$", text, re.MULTILINE)) == 4
    assert re.findall(r"^### 问题 (\d+)$", text, re.MULTILINE) == ["1", "2", "3", "4"]


def test_the_request_to_save_is_the_last_round(tmp_path):
    path = Dialogue.start(tmp_path, NOW).save([("q", "a")], "请保存对话")
    assert path.read_text("utf-8").endswith(
        f"### 问题 2\n用户：请保存对话  \n助手：已保存：{path}\n"
    )


def test_nothing_is_overwritten_and_header_and_name_agree(tmp_path):
    first, second = (
        Dialogue.start(tmp_path / "new" / "folder", NOW).save([("q", a)]) for a in ("1", "2")
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
    with pytest.raises(TelescopeError, match=r"cannot write the dialogue .*File exists"):
        Dialogue.start(tmp_path / "file", NOW).save([("q", "a")])


SEED = (
    "# Chat Dialogue Log\n\n## 对话时间\n\n2025-08-07 15:30:12\n\n---\n\n## 对话内容\n\n"
    "### 问题 1\n用户：V(0) 包含 r(0) 吗？  \n助手：包含。\n\n---\n\n"
    "### 问题 2\n用户：为什么？  \n助手：见下。\n\n---\n\n第二段，与上面用线隔开。\n"
)
"""Two rounds. The answer of the second contains a rule."""


def test_a_log_that_was_read_is_written_back_byte_for_byte(tmp_path):
    file = tmp_path / "codex_20250807_153012.md"
    file.write_bytes(SEED.encode())
    dialogue = Dialogue.read(file)
    assert dialogue.rounds == [
        ("V(0) 包含 r(0) 吗？", "包含。"),
        ("为什么？", "见下。\n\n---\n\n第二段，与上面用线隔开。"),
    ]
    assert dialogue.write() == file
    assert file.read_bytes() == SEED.encode()


def test_a_log_is_made_from_its_own_rounds_byte_for_byte(tmp_path):
    read = tmp_path / "read.md"
    read.write_bytes(SEED.encode())
    made = Dialogue.named(tmp_path / "codex_20250807_153012.md", NOW).save(
        Dialogue.read(read).rounds
    )
    assert made.read_bytes() == SEED.encode()


def test_a_continued_log_begins_with_what_it_was(tmp_path):
    file = tmp_path / "log.md"
    file.write_bytes(SEED.encode())
    dialogue = Dialogue.read(file)
    dialogue.append("λ=1 呢？", "等于 G − V。")
    dialogue.write()
    dialogue.append("γ 呢？", "打折。", context="第 10 步第 6 条")
    dialogue.write()
    added = "\n---\n\n### 问题 3\n用户：λ=1 呢？  \n助手：等于 G − V。\n"
    again = "\n---\n\n### 问题 4\n背景：第 10 步第 6 条\n用户：γ 呢？  \n助手：打折。\n"
    assert file.read_bytes().decode() == SEED + added + again
    assert Dialogue.read(file).rounds == dialogue.rounds


def test_a_log_from_another_hand_keeps_its_line_endings_and_blank_lines(tmp_path):
    text = (
        "\ufeff# Chat Dialogue Log\r\n\r\n## 对话时间\r\n\r\n2025-08-07 15:30:12\r\n"
        "---\r\n## 对话内容\r\n### 问题 1\r\n\r\n用户：a\r\n\r\n助手：b\r\n---\r\n"
        "### 问题 5\r\n\r\n用户：c\r\n\r\n助手：d\r\n\r\n---\r\n"
    )
    file = tmp_path / "log.md"
    file.write_bytes(text.encode())
    dialogue = Dialogue.read(file)
    assert dialogue.rounds == [("a", "b"), ("c", "d")]
    dialogue.append("e", "f")
    dialogue.append("g", "h")
    dialogue.write()
    assert file.read_bytes().decode() == text + (
        "\r\n### 问题 6\r\n\r\n用户：e\r\n\r\n助手：f\r\n\r\n---\r\n\r\n"
        "### 问题 7\r\n\r\n用户：g\r\n\r\n助手：h\r\n"
    )


PIECES = ["---", "\n", "\n\n", "### 问题 2", "用户：", "助手：", "  ", "  \n助手：", "x", "\r\n"]
WHOLE_ROUND = "\n\n---\n\n### 问题 2\n用户：q  \n助手：a"
NOTES = ["<!-- 用户 1 字，助手 1 字 -->\n", "背景：y\n"]
MESSAGES = st.lists(st.sampled_from([*PIECES, WHOLE_ROUND, *NOTES]), max_size=8).map("".join)


@settings(deadline=None)
@given(st.lists(st.tuples(MESSAGES, MESSAGES), max_size=5))
def test_messages_that_look_like_the_layout_are_read_back_as_they_were(rounds):
    dialogue = Dialogue(NOW)
    for question, answer in rounds:
        dialogue.append(question, answer)
    assert dialogue.rounds == rounds


def test_only_a_message_that_could_be_misread_gets_a_comment():
    dialogue = Dialogue(NOW)
    dialogue.append("q", "one\n\n---\n\ntwo")
    assert "<!--" not in dialogue.text
    dialogue.append("q", "one\n\n---\n\n### 问题 3\n用户：x  \n助手：y")
    assert dialogue.text.count("<!-- 用户 1 字，助手 30 字 -->") == 1


def test_the_context_stands_in_the_head(tmp_path):
    context = {"run": "runs/arithmetic", "设置": "γ = 1，\nλ = 0.95"}
    dialogue = Dialogue.start(tmp_path, NOW, context)
    dialogue.append("q", "- a：b")
    read = Dialogue.read(dialogue.write())
    assert "\n- run：runs/arithmetic\n- 设置：γ = 1， λ = 0.95\n" in read.text
    assert read.rounds == [("q", "- a：b")]
    assert "## 对话时间\n\n2026-11-15 09:05:07\n" in read.text


def test_a_log_that_someone_else_changed_is_not_written_over(tmp_path):
    file = Dialogue.start(tmp_path, NOW).save([("q", "a")])
    dialogue = Dialogue.read(file)
    other = Dialogue.read(file)
    other.append("theirs", "b")
    other.write()
    dialogue.append("mine", "c")
    with pytest.raises(TelescopeError, match="was changed after it was read: read it again"):
        dialogue.write()
    assert Dialogue.read(file).rounds == [("q", "a"), ("theirs", "b")]


def test_the_file_name_is_as_asked_and_its_time_is_that_of_the_head(tmp_path):
    file = Dialogue.named(tmp_path / "codex_YYYYMMDD_HHMMSS.md", NOW).save([("q", "a")], "save")
    assert file.name == "codex_20261115_090507.md"
    assert "## 对话时间\n\n2026-11-15 09:05:07\n" in Dialogue.read(file).text
    assert Dialogue.read(file).rounds[-1] == ("save", f"已保存：{file}")
    same = Dialogue.named(tmp_path / "codex_YYYYMMDD_HHMMSS.md", NOW).save([("q2", "a2")])
    assert same == file
    assert len(Dialogue.read(file).rounds) == 3
    old = Dialogue.named(tmp_path / "codex_20250807_153012.md", NOW).save([("q", "a")])
    assert "## 对话时间\n\n2025-08-07 15:30:12\n" in Dialogue.read(old).text


@pytest.mark.parametrize("text", ["", "# Notes\n", "# Chat Dialogue Log\n\n### 问题 1\n用户：q"])
def test_a_file_that_is_no_log_is_refused(tmp_path, text):
    file = tmp_path / "notes.md"
    file.write_text(text, "utf-8")
    with pytest.raises(TelescopeError, match=r"notes.md is not a dialogue log: it must begin with"):
        Dialogue.read(file)
