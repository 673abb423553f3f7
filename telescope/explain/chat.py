"""What the user asked, out of a prompt that a chat template has wrapped."""

from __future__ import annotations

import re

_TURNS = (
    r"<\|im_start\|>user\n(.*?)<\|im_end\|>",
    r"<\|start_header_id\|>user<\|end_header_id\|>\s*(.*?)<\|eot_id\|>",
    r"<start_of_turn>user\n(.*?)<end_of_turn>",
    r"<\|user\|>\n?(.*?)(?:<\|end\|>|</s>|<\|assistant\|>)",
    r"\[INST\](.*?)\[/INST\]",
    r"<｜User｜>(.*?)<｜Assistant｜>",
)
"""ChatML (Qwen, SmolLM), Llama 3, Gemma, Phi and Zephyr, Llama 2 and Mistral, DeepSeek."""
_PATTERNS = tuple(re.compile(turn, re.DOTALL) for turn in _TURNS)
_LONGEST = 20_000
"""Characters of a prompt that are searched, from its end."""


def user_turn(prompt: str) -> str:
    """The last thing that the user said; a prompt without a known template is returned whole."""
    searched = prompt[-_LONGEST:]
    for pattern in _PATTERNS:
        turns = pattern.findall(searched)
        if turns:
            return str(turns[-1]).strip()
    return prompt
