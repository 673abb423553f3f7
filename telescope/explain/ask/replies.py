"""What `telescope ask` says around an answer, in Chinese and English."""

from __future__ import annotations

from telescope.explain.words import Lang, toml


def say(key: str, lang: Lang, *values: object) -> str:
    said: str = toml("ask/replies.toml")[key][lang]
    return said.format(*values)
