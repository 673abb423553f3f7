"""What is said of another trainer's batch, in both languages (words.toml)."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any


def said(key: str, **values: Any) -> dict[str, str]:
    """The text of this name as {"en": …, "zh": …}, with these values in it."""
    return {lang: text.format(**values) for lang, text in _texts()[key].items()}


@functools.cache
def _texts() -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
