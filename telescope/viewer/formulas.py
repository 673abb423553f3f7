"""Formulas for a browser: TeX to copy, and a tree of MathML to draw.

Formulas of one kind differ only in their numbers, so each kind is translated once. Its numbers
become holes: δ₃ = 0.5 − 0.2 has the shape δ⟨0⟩ = ⟨1⟩ − ⟨2⟩, and every formula of this shape is the
translated shape with the numbers put back. A report holds the shapes and does the same.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any
from xml.etree import ElementTree

from telescope.explain.tex import tex

Tree = list[Any]
"""[tag, attributes, child, …]; a child is a tree or text."""

TAGS = frozenset(
    [
        "mrow",
        "mi",
        "mn",
        "mo",
        "msub",
        "msup",
        "msubsup",
        "mfrac",
        "msqrt",
        "mover",
        "munder",
        "munderover",
        "mtext",
        "mspace",
    ]
)
ATTRIBUTES = frozenset({"stretchy", "accent", "mathvariant", "fence", "separator"})
_OPERATORS = frozenset("±…∑∏")
"""Signs that the translator takes for letters; as operators they get their spaces."""
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|[₀-₉]+|[⁰¹²³⁴-⁹]+")
_HOLE = re.compile(r"⟨([0-9]+)⟩")
_FIRST = 90_000
"""Numbers from here on stand for holes while a shape is translated."""


def shape_of(text: str) -> tuple[str, list[str]]:
    """The text with holes in place of its numbers, and the numbers in plain digits."""
    numbers: list[str] = []

    def hole(found: re.Match[str]) -> str:
        digits = unicodedata.normalize("NFKC", found[0])
        is_power = re.search(r"e[−+-]$", text[: found.start()]) is not None
        numbers.append(str(int(digits)) if is_power else digits)  # 1e−05 is 10 to the power −5
        return f"{_kind(found[0])}⟨{len(numbers) - 1}⟩"

    return NUMBER.sub(hole, text), numbers


def _kind(number: str) -> str:
    """A mark for numbers below and above the line: their shape differs from that of others."""
    if number[0] in "₀₁₂₃₄₅₆₇₈₉":
        return "₍"
    return "⁽" if number[0] in "⁰¹²³⁴⁵⁶⁷⁸⁹" else ""


def formula_of(text: str) -> tuple[str, Tree] | None:
    """TeX and MathML of a formula. None if it cannot be translated."""
    if "⟨" in text:
        return None
    shape, numbers = shape_of(text)
    translated = translate_shape(shape)
    if translated is None:
        return _translated(text)
    return filled(translated[0], numbers), filled(translated[1], numbers)


@functools.lru_cache(maxsize=4_096)
def translate_shape(shape: str) -> tuple[str, Tree] | None:
    """TeX and MathML of a shape, with its holes; None if a hole does not come out whole."""
    text = re.sub(r"([₍⁽]?)⟨([0-9]+)⟩", _stand_in, shape)
    found = _translated(text)
    if found is None:
        return None
    count = len(_HOLE.findall(shape))
    every = {str(k) for k in range(count)}
    as_tex, tree = _with_holes(found[0]), _with_holes(found[1])
    if set(_HOLE.findall(as_tex)) != every or set(_HOLE.findall(str(tree))) != every:
        return None
    return as_tex, tree


def _stand_in(found: re.Match[str]) -> str:
    digits = {"": "0123456789", "₍": "₀₁₂₃₄₅₆₇₈₉", "⁽": "⁰¹²³⁴⁵⁶⁷⁸⁹"}[found[1]]
    return "".join(digits[int(digit)] for digit in str(_FIRST + int(found[2])))


def _with_holes(part: Any) -> Any:
    if isinstance(part, list):
        return [_with_holes(child) for child in part]
    if not isinstance(part, str):
        return part
    stands = rf"(?<![0-9]){_FIRST // 1_000}[0-9]{{3}}(?![0-9])"
    return re.sub(stands, lambda found: f"⟨{int(found[0]) - _FIRST}⟩", part)


def filled(part: Any, numbers: list[str]) -> Any:
    """A translated shape with its numbers put back."""
    if isinstance(part, list):
        return [filled(child, numbers) for child in part]
    if not isinstance(part, str):
        return part
    return _HOLE.sub(lambda found: numbers[int(found[1])], part)


@functools.lru_cache(maxsize=512)
def _translated(text: str) -> tuple[str, Tree] | None:
    # Not at the top: it takes a tenth of a second, and most visitors come for the charts first.
    from latex2mathml.converter import convert

    as_tex = tex(text)
    try:
        root = ElementTree.fromstring(convert(as_tex))  # noqa: S314 -- XML that we made
    except Exception:  # whatever is wrong with a formula, the page can show it as text
        return None
    children = _children(root)
    if len(children) == 1 and children[0][0] == "mrow":
        return as_tex, children[0]
    return as_tex, ["mrow", {}, *children]


def _children(element: ElementTree.Element) -> list[Any]:
    """The children as trees. Letters of one upright word become one identifier."""
    made: list[Any] = []
    for child in element:
        tree = _tree(child)
        if tree is None:
            continue
        if made and _is_upright(tree) and _is_upright(made[-1]):
            made[-1] = ["mi", {"mathvariant": "normal"}, made[-1][2] + tree[2]]
        else:
            made.append(tree)
    return made


def _tree(element: ElementTree.Element) -> Tree | None:
    tag = element.tag.rpartition("}")[2]
    if tag not in TAGS:
        return None
    attributes = {k: v for k, v in element.attrib.items() if k in ATTRIBUTES}
    children = _children(element)
    text = (element.text or "").strip() if tag != "mtext" else (element.text or "")
    if tag == "mi" and text in _OPERATORS:
        tag = "mo"
    if tag == "mrow" and len(children) == 1:
        only: Tree = children[0]
        return only
    return [tag, attributes, *([text] if text else []), *children]


def _is_upright(tree: Tree) -> bool:
    return bool(tree[0] == "mi" and tree[1].get("mathvariant") == "normal")
