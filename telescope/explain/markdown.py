"""The same pages as Markdown, their formulas in TeX: for a notebook, an editor or a forge that renders both."""

from __future__ import annotations

from collections.abc import Sequence

from telescope.batch import COLUMNS
from telescope.explain.sample import Sample
from telescope.explain.tables import ANCHORS, QUANTITIES, metaphors
from telescope.explain.terminal import Screen
from telescope.explain.tex import prose, safe, tex
from telescope.explain.text import plain
from telescope.explain.trace import Trace
from telescope.explain.words import Lang, Level


def page(
    sample: Sample,
    *,
    token: int | None = None,
    lang: Lang,
    level: Level,
    width: int,
    batch: Sequence[Sample] = (),
) -> str:
    """What the terminal shows: drawings `width` wide as they are there, terms as displayed formulas."""
    return _Page(sample, token, lang, level, max(width, 40), color=False, batch=batch).text()


class _Page(Screen):
    def text(self) -> str:
        return "\n\n".join(block for part in self.parts() for block in part if block) + "\n"

    def says(self, text: str, style: str | None = None, indent: str = "") -> list[str]:
        return [("### " if style == "bold" else "") + prose(text.strip())]

    def quotes(self, name: str, text: str) -> list[str]:
        return [f"**{name}** {safe(text)}"]

    def draws(self, lines: list[str]) -> list[str]:
        return [fenced("\n".join(lines))]

    def numbers(self, text: str) -> str:
        return plain(text, "≈0") if self.level == "kid" else text

    def term(self, trace: Trace) -> list[str]:
        said, worked, check = self.worked(trace)
        if said == trace.formula:
            return [f"$${tex(said)} {tex(worked)}$$", check]
        return [prose(said), f"$${tex(worked)}$$", check]


def fenced(drawing: str) -> str:
    return "```text\n" + "\n".join(line.rstrip() for line in drawing.rstrip().split("\n")) + "\n```"


def columns(lang: Lang) -> str:
    """The table of telescope.explain.tables.columns."""
    blocks: list[str] = []
    for anchor, heads in ANCHORS.items():
        blocks += [f"### {prose(heads[lang == 'en'])}", ""]
        for column in (column for column in COLUMNS.values() if column.anchor == anchor):
            symbol = f" ${tex(column.formula)}$" if column.formula else ""
            blocks.append(f"- `{column.name}`{symbol}  ")
            blocks.append(f"  {prose(column.zh if lang == 'zh' else column.en)}")
        blocks.append("")
    return "\n".join(blocks).rstrip()


def metaphor_list(lang: Lang) -> str:
    blocks: list[str] = []
    for quantities in metaphors().values():
        blocks += [f"### {quantities['name'][lang]}", ""]
        blocks += [
            *(f"- ${tex(symbol)}$ {quantities[quantity][lang]}" for symbol, quantity in QUANTITIES),
            "",
        ]
    return "\n".join(blocks).rstrip()
