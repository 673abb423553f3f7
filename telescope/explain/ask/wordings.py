"""Every known wording of every question: titles, how people ask, and common misconceptions."""

from __future__ import annotations

from telescope.explain.questions import questions
from telescope.explain.words import toml

ELSEWHERE = "elsewhere"
"""Owner of wordings about things that no text of ours answers."""


def all_wordings() -> dict[str, list[str]]:
    """Question id -> its wordings."""
    data = toml("ask/wordings.toml")
    found: dict[str, list[str]] = {}
    for key, question in questions().items():
        titles = [question.title(lang, level) for lang, level in question.titles]
        also = data["also"].get(key, [])
        wordings = [*titles, *question.asked, *also]
        found[key] = list(dict.fromkeys(wordings))
    found[ELSEWHERE] = data["elsewhere"]
    return found
