"""The same pages as Markdown, their formulas in TeX: for a notebook, an editor or a forge."""

from __future__ import annotations

import re
from collections.abc import Sequence

from telescope.explain.sample import Sample
from telescope.explain.story import Story
from telescope.explain.tables import QUANTITIES, columns_of, metaphors
from telescope.explain.terminal import Screen
from telescope.explain.tex import prose, safe, tex
from telescope.explain.trace import Trace
from telescope.explain.words import Lang, Level, meaning_of, texts, ui


def page(
    sample: Sample,
    *,
    token: int | None = None,
    lang: Lang,
    level: Level,
    width: int,
    batch: Sequence[Sample] = (),
    every: bool = False,
) -> str:
    """What the terminal shows of one token: drawings as they are there, terms as formulas."""
    kind = _StoryPage if level == "kid" else _Page
    made = kind(sample, token, lang, level, max(width, 40), color=False, batch=batch, every=every)
    return made.text()


class _Markdown(Screen):
    """The screen in Markdown: each item of a part is a block."""

    def text(self) -> str:
        return "\n\n".join(block for part in self.parts() for block in part if block) + "\n"

    def says(self, text: str, style: str | None = None, indent: str = "") -> list[str]:
        head = "### " if style == "bold" else ""
        return [head + prose(text.strip())]

    def quotes(self, name: str, text: str) -> list[str]:
        return [f"**{name}** {safe(text)}"]

    def draws(self, lines: list[str]) -> list[str]:
        return [fenced("\n".join(lines))]


class _Page(_Markdown):
    """Terms as displayed formulas."""

    def term(self, trace: Trace) -> list[str]:
        said, worked, check = self.worked(trace)
        return [f"$${tex(said)} {tex(worked)}$$", check]


class _StoryPage(_Markdown, Story):
    """The story has no formulas."""

    def says(self, text: str, style: str | None = None, indent: str = "") -> list[str]:
        head = "### " if style == "bold" else ""
        quoted = re.sub("«.*»|「.*」", lambda found: safe(found[0]), text.strip())
        return [head + quoted]


def fenced(drawing: str) -> str:
    """A drawing as a code block."""
    lines = [line.rstrip() for line in drawing.rstrip().split("\n")]
    return "\n".join(["```text", *lines, "```"])


def columns(lang: Lang) -> str:
    """The list of telescope.explain.tables.columns."""
    blocks: list[str] = []
    for anchor, head in texts()["anchor"].items():
        lines = [f"### {prose(head[lang])}", ""]
        for column in columns_of(anchor):
            symbol = f" ${tex(column.formula)}$" if column.formula else ""
            lines.append(f"- `{column.name}`{symbol}  ")
            lines.append(f"  {prose(meaning_of(column, lang))}  ")
            lines.append(f"  {ui('maker', lang, 'expert', f'`{column.maker}`')}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def metaphor_list(lang: Lang) -> str:
    """The list of telescope.explain.tables.metaphor_list."""
    blocks: list[str] = []
    for quantities in metaphors().values():
        lines = [f"### {quantities['name'][lang]}", ""]
        for symbol, quantity in QUANTITIES:
            lines.append(f"- ${tex(symbol)}$ {quantities[quantity][lang]}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
