"""Chat messages as rounds: what was asked, and what was finally answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Round = tuple[str, str]
"""A question and its answer."""
_TEXT_PARTS = ("text", "input_text", "output_text")
_CALL_PARTS = {"tool_use", "tool_call", "function_call"}


def rounds_of(messages: Iterable[Mapping[str, Any]]) -> list[Round]:
    """(question, answer) pairs of chat messages with `role` and `content`.

    The content is a text or a list of parts. System and tool turns are left out, and so is what an
    assistant said on its way to a tool: the answer is what follows the last call. A tool's result
    inside a user's message is no question; other text in that message is.
    """
    rounds: list[Round] = []
    for message in messages:
        role = message["role"]
        text, kinds = _content(message.get("content"))
        from_tool = role in ("tool", "function") or "tool_result" in kinds
        if from_tool or _calls_tool(message, kinds):
            if rounds:
                rounds[-1] = (rounds[-1][0], "")
        elif role == "assistant" and rounds:
            question, answer = rounds[-1]
            rounds[-1] = (question, f"{answer}\n\n{text}" if answer else text)
        if role == "user" and (text or "tool_result" not in kinds):
            rounds.append((text, ""))
    return rounds


def _calls_tool(message: Mapping[str, Any], kinds: set[str]) -> bool:
    named = message.get("tool_calls") or message.get("function_call")
    return bool(named or kinds & _CALL_PARTS)


def _content(content: Any) -> tuple[str, set[str]]:
    """The text, with parts joined, and the kinds of its parts."""
    if content is None or isinstance(content, str):
        return content or "", set()
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    kinds = [part.get("type", "text") for part in parts]
    said = [part["text"] for part, kind in zip(parts, kinds, strict=True) if kind in _TEXT_PARTS]
    return "".join(said), set(kinds)
