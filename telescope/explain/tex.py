r"""Formulas in TeX. They are written once, in the notation of the terminal, and translated here:

    δ₀ = r₀ + γ·V₁ − V₀ = −0.01 + 1·0.25 − 0.2

becomes

    \delta_{0} = r_{0} + \gamma\cdot V_{1} - V_{0} = -0.01 + 1\cdot0.25 - 0.2

`tex` takes a whole formula; `prose` finds the formulas in a sentence and leaves its words alone.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable

_LETTERS = {
    "β": r"\beta",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\varepsilon",
    "λ": r"\lambda",
    "μ": r"\mu",
    "π": r"\pi",
    "ρ": r"\rho",
    "σ": r"\sigma",
    "τ": r"\tau",
    "Â": r"\hat{A}",
    "Σ": r"\sum",
    "Π": r"\prod",
}
_SIGNS = {
    "−": "-",
    "·": r"\cdot",
    "×": r"\times",
    "÷": r"\div",
    "±": r"\pm",
    "≤": r"\leq",
    "…": r"\ldots",
    "~": r"\sim",
    "≈": r"\approx",
    "%": r"\%",
    "½": r"\frac{1}{2}",
    "′": "'",
    "→": r"\to",
}
_FUNCTIONS = {
    "log": r"\log",
    "exp": r"\exp",
    "min": r"\min",
    "max": r"\max",
    "clip": r"\mathrm{clip}",
}
_OPENING = {"^(": "^{", "√(": r"\sqrt{"}
_CLOSING = {"(": ")", "[": "]"}
_TOKEN = re.compile(
    rf"""
      (?P<number>   (?<![A-Za-z\d.]) (?P<digits>\d*\.?\d+) (?: e(?P<power>[−+-]\d+) )? )
    | (?P<function> \b (?:{"|".join(_FUNCTIONS)}) (?![\w₀-₉]) )
    | (?P<symbol>   (?P<letter> (?<![A-Za-z])[A-Za-z](?![A-Za-z]) | [{"".join(_LETTERS)}] )
                    (?: _\{{(?P<inside>[^{{}}]*)\}} | _(?P<below>[A-Za-z]+|\d+) )?
                    (?P<low>[₀-₉]*)
                    (?: \[(?P<index>\d+|[a-z]⁺?)\] )? )
    | (?P<name>     (?P<stem> (?:kl|score|var)\b
                            | [A-Za-z]+(?:_[A-Za-z]{{2,}})+
                            | [A-Za-z]{{2,}}(?=_|[₀-₉]) )
                    (?: _(?P<letter_below>[a-z]) )?  (?P<low_below>[₀-₉]*)
                    (?: (?<=kl|re)\[(?P<name_index>\d+|[a-z]⁺?)\] )? )
    | (?P<words>    [A-Za-z]{{2,}} (?: \ (?!(?:{"|".join(_FUNCTIONS)})\b) [A-Za-z]{{2,}} )* )
    | (?P<size>     \|[^|]+\| )
    | (?P<power_of> [⁰¹²³⁴-⁹⁺⁻⁽⁾ⁿᵏᴺ]+ )
    | (?P<half>     ½ | ′ )
    | (?P<open>     \^\( | √\( | [(\[] )
    | (?P<close>    [)\]] )
    | (?P<sign>     [=+−·×÷/±<>~≈→^…] )
    | (?P<space>    \s+ )
    | (?P<other>    . )
    """,
    re.VERBOSE,
)
_CODE = re.compile(
    r"`[^`]*`|«[^»]*»|个词「[^」]*」|(?:[a-z]+\.)?[a-z]{2,}(?:_[a-z]+)+(?:\[\w+\])?"
    r"|\b(?:values|returns|rewards|scores|advantages|responses)(?:\[\w+\]|(?= = | \(\d|（[βγ]))"
)
"""What is no formula in a sentence: code, and what stands in quotes, such as a token's text."""
_OPERANDS = ("number", "symbol", "function", "name", "size", "half", "power_of", "close")
_STARTS = ("number", "symbol", "function", "name", "size", "open")
_NOT_FIRST = ("space", "sign", "close", "other", "power_of")
_NOT_LAST = ("space", "sign", "open", "other", "function")


def tex(formula: str) -> str:
    """The formula in TeX: ASCII, with its numbers as they are (6.8e−06 as 6.8 × 10⁻⁶)."""
    out = ""
    closing: list[str] = []  # brackets still open
    for found in _TOKEN.finditer(formula):
        kind = found.lastgroup
        text = found[0]
        if kind == "open":
            closing.append(_CLOSING.get(text, "}"))
            text = _OPENING.get(text, text)
        elif kind == "close" and closing:
            text = closing.pop()
        elif kind == "number":
            text = _number(found, divides=out.endswith("/"))
        elif kind == "words":
            text = _words(found)
        elif kind in _TRANSLATED:
            text = _TRANSLATED[kind](found)
        else:
            text = _SIGNS.get(text, text)
        after_command = re.search(r"\\[A-Za-z]+$", out)
        out += f" {text}" if after_command and text[0].isalpha() else text
    return out


def _number(found: re.Match[str], *, divides: bool) -> str:
    if not found["power"]:
        return found[0]
    power = int(found["power"].replace("−", "-"))
    text = rf"{found['digits']} \times 10^{{{power}}}"
    return f"({text})" if divides else text


def _words(found: re.Match[str]) -> str:
    formula = found.string
    before = " " if formula[found.start() - 1 : found.start()] == " " else ""
    after = " " if formula[found.end() : found.end() + 1] == " " else ""
    return rf"\text{{{before}{found[0]}{after}}}"


def _symbol(found: re.Match[str]) -> str:
    letter = _LETTERS.get(found["letter"], found["letter"])
    below = found["below"] or ""
    if len(below) > 1 and below.isalpha():
        below = rf"\mathrm{{{below}}}"
    inside = tex(found["inside"] or "")
    index = (found["index"] or "").replace("⁺", "^{+}")
    parts = [below, inside, _ascii(found["low"]), index]
    return letter + _below(",".join(part for part in parts if part))


def _name(found: re.Match[str]) -> str:
    stem = found["stem"].replace("_", r"\_")
    index = (found["name_index"] or "").replace("⁺", "^{+}")
    below = (found["letter_below"] or "") + _ascii(found["low_below"]) + index
    return rf"\mathrm{{{stem}}}" + _below(below)


_TRANSLATED: dict[str, Callable[[re.Match[str]], str]] = {
    "function": lambda found: _FUNCTIONS[found[0]],
    "symbol": _symbol,
    "name": _name,
    "size": lambda found: f"|{tex(found[0][1:-1])}|",
    "power_of": lambda found: f"^{{{_ascii(found[0])}}}",
}


def _below(text: str) -> str:
    return f"_{{{text}}}" if text else ""


def _ascii(text: str) -> str:
    """₃ as 3, ⁿ⁻¹ as n-1."""
    return unicodedata.normalize("NFKC", text).replace("−", "-")


def prose(text: str) -> str:
    """The sentence as Markdown: formulas between dollars, code and columns between backquotes."""
    out = ""
    end = 0
    for found in _CODE.finditer(text):
        out += _with_formulas(text[end : found.start()]) + _code(found[0])
        end = found.end()
    return out + _with_formulas(text[end:])


def _code(text: str) -> str:
    if text[0] in "«个":
        return safe(text)
    return text if text[0] == "`" else f"`{text}`"


def safe(text: str) -> str:
    """What somebody wrote, so that Markdown takes none of it for its own."""
    return re.sub(r"[\\`*_$<>&|~\[\]#]", lambda found: f"&#{ord(found[0])};", text)


def _with_formulas(text: str) -> str:
    out = ""
    end = 0
    for start, stop in _formulas(text):
        left = " " if text[start - 1 : start].isalnum() else ""
        right = " " if text[stop : stop + 1].isalnum() else ""
        out += f"{text[end:start]}{left}${tex(text[start:stop])}${right}"
        end = stop
    return out + text[end:]


# ---- formulas in a sentence: operands joined by signs, as long as possible ----

_Run = list[re.Match[str]]


def _formulas(text: str) -> list[tuple[int, int]]:
    """Where formulas stand. Something in each is neither a plain number nor a word."""
    found: list[tuple[int, int]] = []
    run: _Run = []

    def finish() -> None:
        formula = _trimmed(run)
        if any(map(_is_mathematical, formula)) or _is_applied(formula):
            found.append((formula[0].start(), formula[-1].end()))

    for token in _TOKEN.finditer(text):
        if _goes_on(run, token):
            run.append(token)
            continue
        finish()
        run = [token] if _goes_on([], token) else []
    finish()
    return found


def _goes_on(run: _Run, token: re.Match[str]) -> bool:
    """Whether the token can follow the run."""
    kind = token.lastgroup
    if kind == "other":
        return token[0] == "," and _depth(run) > 0
    follows_space = len(run) > 1 and run[-1].lastgroup == "space"
    if follows_space and kind in _STARTS:
        before = run[-2]
        takes_operand = before.lastgroup == "function" or before["letter"] in ("Σ", "Π")
        return takes_operand or before.lastgroup not in _OPERANDS
    return kind != "words"


def _depth(run: _Run) -> int:
    """Brackets still open."""
    return sum((token.lastgroup == "open") - (token.lastgroup == "close") for token in run)


def _trimmed(run: _Run) -> _Run:
    """The run without spaces, signs and unmatched brackets at its ends.

    Neither a function of nothing nor an article ends a formula. The minus of −V stays.
    """
    while run and (_is_loose_end(run) or _is_loose_start(run)):
        run = run[:-1] if _is_loose_end(run) else run[1:]
    return run


def _is_loose_end(run: _Run) -> bool:
    last = run[-1]
    unmatched = last.lastgroup == "close" and _depth(run) < 0
    return last.lastgroup in _NOT_LAST or last[0] == "a" or unmatched


def _is_loose_start(run: _Run) -> bool:
    first = run[0]
    if first[0] == "−" and len(run) > 1 and run[1].lastgroup in _OPERANDS:
        return False
    unmatched = first.lastgroup == "open" and _depth(run) > 0
    return first.lastgroup in _NOT_FIRST or unmatched


def _is_mathematical(token: re.Match[str]) -> bool:
    if token.lastgroup == "symbol":
        return len(token[0]) > 1 or token["letter"] in _LETTERS
    has_index = bool(token["letter_below"] or token["low_below"])
    return has_index or token.lastgroup in ("size", "power_of", "half")


def _is_applied(run: _Run) -> bool:
    """Whether there is a sign after an operand, or a function's bracket: V(…)."""
    tokens = [token for token in run if token.lastgroup != "space"]
    for a, b in itertools.pairwise(tokens):
        if a.lastgroup in _OPERANDS and b.lastgroup == "sign" and b[0] not in "/…":
            return True
        touches = b[0] == "(" and a.end() == b.start()
        if a.lastgroup in ("symbol", "function") and touches:
            return True
    return False
