"""The code blocks of the docs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def block(page: str, first_line: str) -> str:
    """The code block of a page that starts with this line."""
    text = (DOCS / page).read_text("utf-8")
    blocks: list[str] = re.findall(r"^```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (found,) = [code for code in blocks if code.startswith(first_line)]
    return found


def commands(page: str) -> list[list[str]]:
    """The words after `telescope` of each command of a page, in its order."""
    text = (DOCS / page).read_text("utf-8")
    lines = re.findall(r"^telescope (.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]
