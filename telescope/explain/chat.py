"""A prompt that a chat template has wrapped, taken apart into its turns."""

from __future__ import annotations

import re
from dataclasses import dataclass

TEMPLATE = "template"
"""Role of what is only markup."""
_LONGEST = 20_000
"""Characters of a prompt that are searched for the user's turn, from its end."""
_LONGEST_ROLE = 24
_ROLES = {"model": "assistant", "ipython": "tool", "human": "user", "gpt": "assistant"}
"""Other names of the usual roles."""


@dataclass(frozen=True)
class Part:
    """A piece of a prompt, and who said it."""

    role: str
    text: str


_NAMED = "named"
"""The mark names the role itself, as its group 1."""
_Marks = dict[str, str | None]
"""Mark -> the role whose turn it begins; None: it ends a turn."""
_TEMPLATES: tuple[_Marks, ...] = (
    {r"<\|im_start\|>([^\n<]*)\n": _NAMED, r"<\|im_end\|>\n?": None},
    {
        r"<\|start_header_id\|>([^\n<]*)<\|end_header_id\|>\s*": _NAMED,
        r"<\|eot_id\|>|<\|eom_id\|>": None,
        r"<\|begin_of_text\|>": None,
    },
    {r"<start_of_turn>([^\n<]*)\n": _NAMED, r"<end_of_turn>\n?": None, "<bos>": None},
    {
        r"<\|(user|system|assistant|tool)\|>\n?": _NAMED,
        r"<\|end\|>\n?": None,
        r"</s>\n?": None,
    },
    {
        r"\[INST\]\s?": "user",
        r"\s?\[/INST\]\s?": "assistant",
        r"<<SYS>>\n?": "system",
        r"\n?<</SYS>>\s*": "user",
        r"</?s>": None,
    },
    {
        "<｜User｜>": "user",
        "<｜Assistant｜>": "assistant",
        "<｜begin▁of▁sentence｜>": "system",
        "<｜end▁of▁sentence｜>": None,
    },
)
"""ChatML (Qwen, SmolLM), Llama 3, Gemma, Phi and Zephyr, Mistral and Llama 2, DeepSeek."""


def parts(prompt: str) -> list[Part]:
    """The turns and the markup between them, in order: joined, they are the prompt.

    A prompt without a known template is one turn of the user.
    """
    for marks in _TEMPLATES:
        found = _split(prompt, marks)
        if any(part.role == "user" for part in found):
            return found
    return [Part("user", prompt)] if prompt else []


def _split(prompt: str, marks: _Marks) -> list[Part]:
    any_mark = "|".join(f"(?:{mark})" for mark in marks)
    found: list[Part] = []
    role: str | None = None
    end = 0
    for mark in re.finditer(any_mark, prompt):
        _append(found, role or TEMPLATE, prompt[end : mark.start()])
        _append(found, TEMPLATE, mark[0])
        role = _role_after(mark[0], marks)
        end = mark.end()
    _append(found, role or TEMPLATE, prompt[end:])
    return found


def _role_after(text: str, marks: _Marks) -> str | None:
    """Whose turn begins with this mark."""
    mark = next(mark for mark in marks if re.fullmatch(mark, text))
    if marks[mark] != _NAMED:
        return marks[mark]
    role = re.sub(mark, r"\1", text).strip().lower()[:_LONGEST_ROLE]
    return _ROLES.get(role, role) or TEMPLATE


def _append(found: list[Part], role: str, text: str) -> None:
    """Adds the text; markup that follows markup becomes one part."""
    if not text:
        return
    if found and found[-1].role == role == TEMPLATE:
        found[-1] = Part(role, found[-1].text + text)
    else:
        found.append(Part(role, text))


def user_turn(prompt: str) -> str:
    """The last thing that the user said; a prompt without a known template is returned whole."""
    said = [part.text for part in parts(prompt[-_LONGEST:]) if part.role == "user"]
    if not said or said[-1] == prompt[-_LONGEST:]:
        return prompt
    return said[-1].strip()
