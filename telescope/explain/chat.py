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


@dataclass(frozen=True)
class _Template:
    """Marks of one chat template. A mark begins a role's turn, or ends it (None)."""

    named: str
    """A mark that names the role itself, as group 1; empty: there is none."""
    marks: dict[str, str | None]

    def pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?:{mark})" for mark in [self.named, *self.marks] if mark))

    def role_after(self, mark: str) -> str | None:
        """Whose turn begins with this mark."""
        found = re.fullmatch(self.named, mark) if self.named else None
        if found:
            role = found[1].strip().lower()[:_LONGEST_ROLE]
            return _ROLES.get(role, role) or TEMPLATE
        return next(role for pattern, role in self.marks.items() if re.fullmatch(pattern, mark))


_TEMPLATES = (
    _Template(r"<\|im_start\|>([^\n<]*)\n", {r"<\|im_end\|>\n?": None}),
    _Template(
        r"<\|start_header_id\|>([^\n<]*)<\|end_header_id\|>\s*",
        {r"<\|eot_id\|>|<\|eom_id\|>": None, r"<\|begin_of_text\|>": None},
    ),
    _Template(r"<start_of_turn>([^\n<]*)\n", {r"<end_of_turn>\n?": None, "<bos>": None}),
    _Template(r"<\|(user|system|assistant|tool)\|>\n?", {r"<\|end\|>\n?": None, r"</s>\n?": None}),
    _Template(
        "",
        {
            r"\[INST\]\s?": "user",
            r"\s?\[/INST\]\s?": "assistant",
            r"<<SYS>>\n?": "system",
            r"\n?<</SYS>>\s*": "user",
            r"</?s>": None,
        },
    ),
    _Template(
        "",
        {
            "<｜User｜>": "user",
            "<｜Assistant｜>": "assistant",
            "<｜begin▁of▁sentence｜>": "system",
            "<｜end▁of▁sentence｜>": None,
        },
    ),
)
"""ChatML (Qwen, SmolLM), Llama 3, Gemma, Phi and Zephyr, Mistral and Llama 2, DeepSeek."""
_KNOWN = tuple((template, template.pattern()) for template in _TEMPLATES)


def parts(prompt: str) -> list[Part]:
    """The turns and the markup between them, in order: joined, they are the prompt.

    A prompt without a known template is one turn of the user.
    """
    for template, pattern in _KNOWN:
        found = _split(prompt, template, pattern)
        if any(part.role == "user" for part in found):
            return found
    return [Part("user", prompt)] if prompt else []


def _split(prompt: str, template: _Template, pattern: re.Pattern[str]) -> list[Part]:
    found: list[Part] = []
    role: str | None = None
    end = 0
    for mark in pattern.finditer(prompt):
        _append(found, role or TEMPLATE, prompt[end : mark.start()])
        _append(found, TEMPLATE, mark[0])
        role = template.role_after(mark[0])
        end = mark.end()
    _append(found, role or TEMPLATE, prompt[end:])
    return found


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
