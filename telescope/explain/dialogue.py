"""The questions asked and the answers given, as a Markdown log: verbatim, in time order, nothing shortened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError


def save_dialogue(
    folder: str | Path,
    rounds: Sequence[tuple[str, str]],
    now: datetime,
    *,
    request: str | None = None,
) -> Path:
    """Writes `telescope_YYYYMMDD_HHMMSS.md` (UTF-8) of (question, answer) rounds; `request`, the wish to save, is the last round.

    A name that is taken moves the time on by a second, in the name and in the header; nothing is overwritten.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = folder / f"telescope_{now:%Y%m%d_%H%M%S}.md"
            asked = [*rounds, *([(request, f"已保存：{path}")] if request is not None else [])]
            body = "\n\n---\n\n".join(
                f"### 问题 {n}\n用户：{q}  \n助手：{a}" for n, (q, a) in enumerate(asked, 1)
            )
            text = f"# Chat Dialogue Log\n\n## 对话时间\n\n{now:%Y-%m-%d %H:%M:%S}\n\n---\n\n## 对话内容\n\n{body}\n"
            try:
                with path.open("xb") as file:
                    file.write(text.encode("utf-8", "backslashreplace"))
                return path
            except FileExistsError:
                now += timedelta(seconds=1)
    except OSError as error:
        raise TelescopeError(
            f"cannot write a dialogue into {folder} ({error.strerror}): give a folder you may write to"
        ) from None


def rounds_of(messages: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(question, answer) pairs of chat messages with `role` and `content`, a text or a list of parts.

    System and tool turns are left out, and what an assistant said on its way to a tool: the answer is what follows the last call.
    A result that comes in a user's message is not asked; what else that message says is.
    """
    rounds: list[tuple[str, str]] = []
    for message in messages:
        role, text, kinds = message["role"], *_content(message.get("content"))
        calls = (
            message.get("tool_calls")
            or message.get("function_call")
            or kinds & {"tool_use", "tool_call", "function_call"}
        )
        if role in ("tool", "function") or calls or "tool_result" in kinds:
            if rounds:
                rounds[-1] = (rounds[-1][0], "")
        elif role == "assistant" and rounds:
            question, answer = rounds[-1]
            rounds[-1] = (question, f"{answer}\n\n{text}" if answer else text)
        if role == "user" and (text or "tool_result" not in kinds):
            rounds.append((text, ""))
    return rounds


def _content(content: Any) -> tuple[str, set[str]]:
    """The text, with parts joined, and the kinds of its parts."""
    if content is None or isinstance(content, str):
        return content or "", set()
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    said = "".join(
        part["text"]
        for part in parts
        if part.get("type", "text") in ("text", "input_text", "output_text")
    )
    return said, {part.get("type", "text") for part in parts}
