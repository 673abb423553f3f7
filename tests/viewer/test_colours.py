"""The page's colours can be read: 4.5:1 for text, 3:1 for lines (WCAG 2.2, AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = Path(__file__).parents[2] / "telescope" / "viewer" / "static" / "css" / "tokens.css"
TEXTS = ["ink", "quiet", "pick", "state", "plus", "minus", "good", "bad"]
GROUNDS = ["panel", "page", "soft"]
TEXTS_ON = [("pick", "chosen"), ("bad", "bad-soft"), ("ink", "warn"), ("ink", "chosen")]
TOKEN = re.compile(r"--([\w-]+): (#[0-9a-f]{3,6});")
LINES = [f"line-{i}" for i in range(8)]


def tokens(theme: str) -> dict[str, str]:
    """Name -> #rrggbb of the light or the dark theme."""
    light, dark = CSS.read_text("utf-8").split('[data-theme="dark"]')
    found = dict(TOKEN.findall(light))
    return found if theme == "light" else found | dict(TOKEN.findall(dark))


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    dark, light = sorted(map(luminance, (a, b)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_ground(theme: str) -> None:
    named = tokens(theme)
    pairs = [(text, ground) for text in TEXTS for ground in GROUNDS] + TEXTS_ON
    found = {pair: round(contrast(named[pair[0]], named[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_of_charts_stand_out(theme: str) -> None:
    named = tokens(theme)
    found = {line: round(contrast(named[line], named["panel"]), 2) for line in LINES}
    assert {line: ratio for line, ratio in found.items() if ratio < 3.0} == {}


def test_contrast_of_black_and_white() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21.0)
