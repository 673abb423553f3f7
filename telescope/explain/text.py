"""Text from a model made safe and visible for a terminal, and measured in terminal cells.

Lines are wrapped here and not by rich, which breaks only at spaces: Chinese has none, and a line
must not begin with its closing punctuation.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len

_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "␡", "\u3000": "␣"}
_OPEN = "（「『“《«"
_CLOSE = "，。；：！？、）」』”》»"
_HAN = "⺀-鿿豈-﫿＀-￯"
_WORD = re.compile(rf"[{_OPEN}]*(?:[{_HAN}]|[^\s{_HAN}{_OPEN}{_CLOSE}]+)[{_CLOSE}]*|\s+|.")
_MOST_BYTES = 4096
"""Of one token."""


# ---- tokens ----


def pieces(token_bytes: Sequence[bytes]) -> list[str]:
    """Each token as visible text.

    A character split over tokens shows as ⟨e4⟩, ⟨b8⟩, ⟨ad⟩中: its bytes, and itself once.
    """
    cut = [_limited(piece) for piece in token_bytes]
    joined = b"".join(cut)
    owner = [i for i, piece in enumerate(cut) for _ in piece]
    out = [""] * len(cut)
    start = 0
    while start < len(joined):
        size, char = _character(joined, start)
        first = owner[start]
        last = owner[start + size - 1]
        if char is None or first != last:
            for at in range(start, start + size):
                out[owner[at]] += f"⟨{joined[at]:02x}⟩"
        if char is not None:
            out[last] += visible(char)
        start += size
    return [_standing(text) for text in out]


def _limited(piece: bytes) -> bytes:
    if len(piece) <= _MOST_BYTES:
        return piece
    return piece[:_MOST_BYTES] + "…".encode()


def _standing(text: str) -> str:
    """An accent gets something to stand on, an empty token a sign."""
    if text and unicodedata.combining(text[0]):
        return f"◌{text}"
    return text or "∅"


def _character(data: bytes, start: int) -> tuple[int, str | None]:
    """The size of the character there, and the character; 1 and None where it is not UTF-8."""
    head = data[start]
    size = 1 if head < 0x80 else 2 if head < 0xE0 else 3 if head < 0xF0 else 4
    try:
        return size, data[start : start + size].decode("utf-8")
    except UnicodeDecodeError:
        return 1, None


# ---- characters ----


def visible(text: str, *, spaces: bool = True) -> str:
    """The text with every control as a visible name, so that none reaches the terminal.

    Controls are C0, C1 and ESC, bidi and zero-width marks, and lone surrogates.
    """
    return "".join(c if c == " " and not spaces else _show(c) for c in text)


def printable(text: str) -> str:
    """The same for text of several lines: its line breaks, tabs and spaces stay."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) == "Zs" else _show(c) for c in text)


def _show(c: str) -> str:
    if c in _VISIBLE:
        return _VISIBLE[c]
    if c < " ":
        return chr(0x2400 + ord(c))  # ␀ … ␛ … ␟
    category = unicodedata.category(c)
    if category == "Zs":
        return "␣"
    is_unseen = category[0] == "C" or category in ("Zl", "Zp")
    return f"⟨u+{ord(c):04x}⟩" if is_unseen else c


_SMALL = re.compile(r"([−-]?)(\d*\.?\d+)e[−-](\d+)")


def plain(text: str, almost: str) -> str:
    """Numbers for a child: −6.8e−06 becomes −0.000007.

    What six decimals cannot show becomes `almost`.
    """

    def fixed(found: re.Match[str]) -> str:
        sign, digits, power = found.groups()
        number = float(digits) / 10 ** int(power)
        text = f"{number:.6f}".rstrip("0")
        return almost if text == "0." else sign + text

    return _SMALL.sub(fixed, text)


def about(x: float, almost: str) -> str:
    """A number for a child: one decimal; `almost` for what that would show as 0."""
    if not math.isfinite(x):
        return str(x)
    text = f"{x:.1f}".replace("-", "−")
    if text.lstrip("−") == "0.0":
        return "0" if x == 0 else almost
    return text.removesuffix(".0")


# ---- cells ----


def shorten(text: str, width: int) -> str:
    """At most `width` cells, and twice as many characters: stacked accents take no cell."""
    if len(text) <= 2 * width and cell_len(text) <= width:
        return text
    out = ""
    used = 0
    for c in text[: 2 * width]:
        used += cell_len(c)
        if used > width - 1:
            break
        out += c
    return out + "…"


def both_ends(text: str, width: int) -> str:
    """At most `width` cells: how the text begins and, twice as much, how it ends.

    A chat prompt ends with the question.
    """
    if shorten(text, width) == text:
        return text
    head = shorten(text, width // 3)[:-1]
    tail = shorten(text[::-1], width - cell_len(head))[::-1]
    return head + tail


def pad(text: str, width: int, align: str = "<") -> str:
    """The text with spaces up to `width` cells."""
    room = max(width - cell_len(text), 0)
    spaces = " " * room
    return spaces + text if align == ">" else text + spaces


def fold(text: str, width: int, indent: str = "") -> str:
    """Every line of `text` wrapped; `indent` goes before what a line continues with."""
    return "\n".join(each for line in text.split("\n") for each in wrap(line, width, indent))


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` cells.

    Breaks at spaces and between Chinese characters, inside a word only if it must.
    """
    lines: list[str] = []
    line = ""
    for word in _WORD.findall(text):
        while cell_len(word) > width - len(indent):
            head = shorten(word, width - len(indent) - cell_len(line))[:-1]
            if not head and not line:
                break
            lines.append(line + head)
            line = indent
            word = word[len(head) :]
        if cell_len(line) + cell_len(word.rstrip()) > width:
            lines.append(line)
            line = indent
            word = word.lstrip()
        line += word
    kept = [each.rstrip() for each in [*lines, line]]
    return [each for each in kept if each] or [""]
