"""Text from a model made safe and visible for a terminal, and measured in terminal cells."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len

_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "␡", "\u3000": "␣"}
_OPEN, _CLOSE, _HAN = "（「『“《«", "，。；：！？、）」』”》»", "⺀-鿿豈-﫿＀-￯"
_WORD = re.compile(rf"[{_OPEN}]*(?:[{_HAN}]|[^\s{_HAN}{_OPEN}{_CLOSE}]+)[{_CLOSE}]*|\s+|.")
_MOST_BYTES = 4096


def pieces(token_bytes: Sequence[bytes]) -> list[str]:
    """Each token as visible text. A character split over tokens shows as ⟨e4⟩, ⟨b8⟩, ⟨ad⟩中: its bytes, and itself once."""
    token_bytes = [
        piece if len(piece) <= _MOST_BYTES else piece[:_MOST_BYTES] + "…".encode()
        for piece in token_bytes
    ]
    joined = b"".join(token_bytes)
    owner = [i for i, piece in enumerate(token_bytes) for _ in piece]
    out, p = [""] * len(token_bytes), 0
    while p < len(joined):
        size, char = _character(joined, p)
        first, last = owner[p], owner[p + size - 1]
        if char is None or first != last:
            for q in range(p, p + size):
                out[owner[q]] += f"⟨{joined[q]:02x}⟩"
        if char is not None:
            out[last] += visible(char)
        p += size
    return [f"◌{text}" if text and unicodedata.combining(text[0]) else text or "∅" for text in out]


def _character(data: bytes, p: int) -> tuple[int, str | None]:
    head = data[p]
    size = 1 if head < 0x80 else 2 if head < 0xE0 else 3 if head < 0xF0 else 4
    try:
        return size, data[p : p + size].decode("utf-8")
    except UnicodeDecodeError:
        return 1, None


def visible(text: str, *, spaces: bool = True) -> str:
    """No control reaches the terminal: C0, C1 and ESC, bidi and zero-width marks, lone surrogates become visible names."""
    return "".join(" " if c == " " and not spaces else _show(c) for c in text)


def _show(c: str) -> str:
    if c in _VISIBLE:
        return _VISIBLE[c]
    if c < " ":
        return chr(0x2400 + ord(c))  # ␀ … ␛ … ␟
    category = unicodedata.category(c)
    if category == "Zs":
        return "␣"
    return f"⟨u+{ord(c):04x}⟩" if category[0] == "C" or category in ("Zl", "Zp") else c


_SMALL = re.compile(r"([−-]?)(\d*\.?\d+)e[−-](\d+)")


def plain(text: str, almost: str) -> str:
    """Numbers for a child: −6.8e−06 becomes −.000007, and what six decimals cannot show `almost` 0."""

    def fixed(found: re.Match[str]) -> str:
        digits = f"{float(found[2]) / 10 ** int(found[3]):.6f}".strip("0")
        return f"{found[1]}{digits}" if digits != "." else almost

    return _SMALL.sub(fixed, text)


def shorten(text: str, width: int) -> str:
    """At most `width` cells (and as many characters, so that stacked accents do not pile up)."""
    if len(text) <= 2 * width and cell_len(text) <= width:
        return text
    out, used = "", 0
    for c in text[: 2 * width]:
        if used + cell_len(c) > width - 1:
            break
        out, used = out + c, used + cell_len(c)
    return out + "…"


def both_ends(text: str, width: int) -> str:
    """At most `width` cells: how it begins and, twice as much, how it ends. A chat prompt ends with the question."""
    if shorten(text, width) == text:
        return text
    head = shorten(text, width // 3)[:-1]
    return head + shorten(text[::-1], width - cell_len(head))[::-1]


def pad(text: str, width: int, align: str = "<") -> str:
    room = max(width - cell_len(text), 0)
    left = {"<": 0, ">": room, "^": room // 2}[align]
    return " " * left + text + " " * (room - left)


def fold(text: str, width: int, indent: str = "") -> str:
    """Every line of `text` wrapped; `indent` goes before what a line continues with."""
    return "\n".join(part for line in text.split("\n") for part in wrap(line, width, indent))


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` cells; breaks at spaces and between Chinese characters, inside a word only if it must."""
    lines, line = [], ""
    for word in _WORD.findall(text):
        while cell_len(word) > width - len(indent):
            head = shorten(word, width - len(indent) - cell_len(line))[:-1]
            if not head and not line:
                break
            lines.append(line + head)
            line, word = indent, word[len(head) :]
        if cell_len(line) + cell_len(word.rstrip()) > width:
            lines.append(line)
            line, word = indent, word.lstrip()
        line += word
    return [kept for kept in ([x.rstrip() for x in [*lines, line]]) if kept] or [""]
