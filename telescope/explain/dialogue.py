"""Questions and answers as a Markdown log: verbatim, in time order, nothing shortened.

    # Chat Dialogue Log

    ## 对话时间

    2026-11-16 09:05:07

    ---

    ## 对话内容

    ### 问题 1
    用户：V(0) 包含 r(0) 吗？␠␠
    助手：包含。

    ---

    ### 问题 2
    …

A log may also say what it is about: a section `## 对话背景` in the head, or a line `背景：…` before
the question from which on it is about something else. A message may contain `---` or even a whole
log. Where it could be mistaken for the end of its round, a comment in the round states the lengths.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from telescope.errors import TelescopeError
from telescope.explain.messages import Round

TIME_IN_NAME = "YYYYMMDD_HHMMSS"
"""Stands for the time in a file name."""
_TIME = "%Y-%m-%d %H:%M:%S"
_NAME_TIME = "%Y%m%d_%H%M%S"

_LINE = r"(?:\r?\n)"
_HEAD = re.compile(
    rf"\ufeff?# Chat Dialogue Log[ \t]*{_LINE}"
    rf".*?{_LINE}+---{_LINE}+"
    rf"## 对话内容[ \t]*(?:{_LINE}+|\Z)",
    re.DOTALL,
)
_NOTE = rf"(?:(?:<!--|背景：)[^\r\n]*{_LINE}|{_LINE})"
_TITLE = rf"### 问题 \d+[ \t]*{_LINE}{_NOTE}*用户[：:]"
_ROUND = re.compile(_TITLE)
_TO_ANSWER = re.compile(rf"(?: {{2}})?{_LINE}+助手[：:]")
_SEPARATOR = re.compile(rf"{_LINE}+---[ \t]*{_LINE}+(?={_TITLE})")
_END = re.compile(rf"(?P<rule>{_LINE}+---)?\s*\Z")
_NOTES = re.compile(rf"(?:<!--|背景：)[^\r\n]*{_LINE}")
_NUMBER = re.compile(r"### 问题 (\d+)")
_LENGTHS = re.compile(r"<!-- 用户 (\d+) 字，助手 (\d+) 字 -->")


@dataclass(frozen=True)
class _Found:
    """A round as it stands in the text of a log."""

    number: int
    question: str
    answer: str
    title: str
    """From ### to 用户：, without notes."""
    to_answer: str
    """From the end of the question to 助手：."""
    end: int
    """Where the answer ends in the text."""
    separator: str
    """What stands between this round and the next; empty for the last."""


class Dialogue:
    """A log: read it or start one, append rounds, write it.

    What was read stays as it is, byte for byte. New rounds take the form of those before them: line
    endings, blank lines, and the next number.
    """

    def __init__(
        self, now: datetime, context: Mapping[str, str] | None = None, path: Path | None = None
    ) -> None:
        about = f"# Chat Dialogue Log\n\n## 对话时间\n\n{now.strftime(_TIME)}\n\n"
        if context:
            lines = [f"- {key}：{_one_line(value)}" for key, value in context.items()]
            about += "## 对话背景\n\n" + "\n".join(lines) + "\n\n"
        self.path = path
        self.text = f"{about}---\n\n## 对话内容\n"
        """The whole log."""
        self._on_disk: bytes | None = None

    @classmethod
    def start(
        cls,
        folder: str | Path,
        now: datetime,
        context: Mapping[str, str] | None = None,
        name: str = "telescope",
    ) -> Dialogue:
        """A new log `NAME_YYYYMMDD_HHMMSS.md`. Nothing is written yet.

        If the name is taken, the time moves on by a second, in the name and in the head.
        """
        while True:
            path = Path(folder) / f"{name}_{now.strftime(_NAME_TIME)}.md"
            if not path.exists():
                return cls(now, context, path)
            now += timedelta(seconds=1)

    @classmethod
    def named(cls, path: str | Path, now: datetime) -> Dialogue:
        """The log in this file if there is one, else a new log of this name.

        `YYYYMMDD_HHMMSS` in the name stands for the time. A time in the name is that of the head.
        """
        name = Path(path).name.replace(TIME_IN_NAME, now.strftime(_NAME_TIME))
        target = Path(path).with_name(name)
        if target.exists():
            return cls.read(target)
        stated = re.search(r"\d{8}_\d{6}", name)
        with contextlib.suppress(ValueError):  # digits that are no time
            now = datetime.strptime(stated[0], _NAME_TIME) if stated else now
        return cls(now, path=target)

    @classmethod
    def read(cls, path: str | Path) -> Dialogue:
        """The log in a file."""
        path = Path(path)
        try:
            content = path.read_bytes()
            text = content.decode("utf-8")
        except OSError as error:
            raise TelescopeError(
                f"cannot read {path} ({error.strerror}): give a dialogue log, a Markdown file"
            ) from None
        except UnicodeDecodeError:
            raise TelescopeError(f"{path} is not UTF-8 text: save it as UTF-8") from None
        if _HEAD.match(text) is None:
            raise TelescopeError(
                f"{path} is not a dialogue log: it must begin with `# Chat Dialogue Log`, and "
                "`---` and `## 对话内容` must stand before `### 问题 1`"
            )
        found = cls(datetime.min, path=path)
        found.text = text
        found._on_disk = content
        return found

    @property
    def rounds(self) -> list[Round]:
        """Questions and answers, in time order."""
        return [(found.question, found.answer) for found in self._rounds()]

    def append(self, question: str, answer: str, context: str = "") -> None:
        """Adds a round. `context` is for a round that is about something else than the last."""
        question = _writable(question)
        answer = _writable(answer)
        before = self._rounds()
        expected = [*self.rounds, (question, answer)]
        new_line = "\r\n" if "\r\n" in self._head()[0] else "\n"
        title = f"### 问题 1{new_line}用户："
        to_answer = f"  {new_line}助手："
        if before:
            title = _NUMBER.sub(f"### 问题 {before[-1].number + 1}", before[-1].title)
            to_answer = before[-1].to_answer
        note = f"背景：{_one_line(context)}{new_line}" if context else ""
        lengths = f"<!-- 用户 {len(question)} 字，助手 {len(answer)} 字 -->{new_line}"

        at_user = title.rindex("用户")
        messages = f"{title[at_user:]}{question}{to_answer}{answer}{new_line}"
        start = self._before_next(before, new_line) + title[:at_user] + note
        self.text = start + messages
        if self.rounds != expected:
            self.text = start + lengths + messages

    def save(self, rounds: Sequence[Round], request: str | None = None) -> Path:
        """Appends the rounds, writes the file and returns its path.

        `request`, the wish to save, becomes the last round.
        """
        for question, answer in rounds:
            self.append(question, answer)
        if request is not None:
            self.append(request, f"已保存：{self.path}")
        return self.write()

    def write(self) -> Path:
        """Writes what is new to the file and returns its path. A new file must not exist yet."""
        if self.path is None:
            raise TelescopeError("this dialogue has no file: give its path")
        content = self.text.encode("utf-8")
        written = self._on_disk or b""
        try:
            if self._on_disk is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif self.path.read_bytes() != written:
                raise TelescopeError(
                    f"{self.path} was changed after it was read: read it again, then append"
                )
            with self.path.open("xb" if self._on_disk is None else "ab") as file:
                file.write(content[len(written) :])
        except OSError as error:
            raise TelescopeError(
                f"cannot write the dialogue {self.path} ({error.strerror}): "
                "give a place you may write to, and a new file a name that is not taken"
            ) from None
        self._on_disk = content
        return self.path

    def _head(self) -> re.Match[str]:
        head = _HEAD.match(self.text)
        assert head is not None
        return head

    def _rounds(self) -> list[_Found]:
        found: list[_Found] = []
        title = _ROUND.match(self.text, self._head().end())
        while title is not None:
            found.append(_round_at(self.text, title))
            title = _ROUND.match(self.text, found[-1].end + len(found[-1].separator))
        return found

    def _before_next(self, rounds: Sequence[_Found], new_line: str) -> str:
        """The text as it is, with what has to stand between it and the next round."""
        between = new_line * 2
        end = _END.match(self.text, rounds[-1].end) if rounds else None
        if rounds and not (end and end["rule"]):
            separators = [found.separator for found in rounds if found.separator]
            between = separators[-1] if separators else f"{new_line * 2}---{new_line * 2}"
        tail = self.text[len(self.text.rstrip("\r\n")) :]
        for _ in range(tail.count("\n")):
            between = between.removeprefix(new_line)
        return self.text + between


def _round_at(text: str, title: re.Match[str]) -> _Found:
    """The round whose title is this one."""
    question, to_answer, answer = _stated_messages(text, title) or _messages(text, title)
    end = title.end() + len(question) + len(to_answer) + len(answer)
    separator = _SEPARATOR.match(text, end)
    number = _NUMBER.match(title[0])
    assert number is not None
    return _Found(
        number=int(number[1]),
        question=question,
        answer=answer,
        title=_NOTES.sub("", title[0]),
        to_answer=to_answer,
        end=end,
        separator=separator[0] if separator else "",
    )


def _stated_messages(text: str, title: re.Match[str]) -> tuple[str, str, str] | None:
    """Question, what follows it, and answer, of the lengths that the round states.

    None if it states none, or if they do not fit: the file was edited.
    """
    stated = _LENGTHS.search(title[0])
    if stated is None:
        return None
    question_end = title.end() + int(stated[1])
    to_answer = _TO_ANSWER.match(text, question_end)
    if to_answer is None:
        return None
    end = to_answer.end() + int(stated[2])
    if not (_SEPARATOR.match(text, end) or _END.match(text, end)):
        return None
    return text[title.end() : question_end], to_answer[0], text[to_answer.end() : end]


def _messages(text: str, title: re.Match[str]) -> tuple[str, str, str]:
    """Question, what follows it, and answer, as far as the next separator."""
    start = title.end()
    last = _SEPARATOR.search(text, start) or _END.search(text, start)
    assert last is not None
    to_answer = _TO_ANSWER.search(text, start, last.start())
    if to_answer is None:
        return text[start : last.start()], "", ""
    return text[start : to_answer.start()], to_answer[0], text[to_answer.end() : last.start()]


def _writable(message: str) -> str:
    """Half a surrogate pair cannot be written as UTF-8: it becomes an escape."""
    return message.encode("utf-8", "backslashreplace").decode("utf-8")


def _one_line(text: str) -> str:
    return " ".join(_writable(text).split())
