r"""Formulas in TeX. They are written once, in the notation of the terminal, and translated here:

    δ₀ = r₀ + γ·V₁ − V₀ = −.01 + 1·.25 − .2    becomes    \delta_{0} = r_{0} + \gamma\cdot V_{1} - V_{0} = -.01 + 1\cdot.25 - .2

`tex` takes a whole formula; `prose` finds the formulas in a sentence and leaves its words alone.
"""

from __future__ import annotations

import itertools
import re
import unicodedata

_LETTERS = {
    "β": r"\beta",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\varepsilon",
    "λ": r"\lambda",
    "μ": r"\mu",
    "π": r"\pi",
    "ρ": r"\rho",
}
_LETTERS |= {"σ": r"\sigma", "τ": r"\tau", "Â": r"\hat{A}", "Σ": r"\sum", "Π": r"\prod"}
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
}
_SIGNS |= {"½": r"\frac{1}{2}", "′": "'", "→": r"\to"}
_FUNCTIONS = {name: rf"\{name}" for name in ("log", "exp", "min", "max")} | {
    "clip": r"\mathrm{clip}"
}
_TOKEN = re.compile(
    rf"""
      (?P<number>   (?<![A-Za-z\d.]) (?P<digits>\d*\.?\d+) (?: e(?P<power>[−+-]\d+) )? )
    | (?P<function> \b (?:{"|".join(_FUNCTIONS)}) (?![\w₀-₉]) )
    | (?P<symbol>   (?P<letter> (?<![A-Za-z])[A-Za-z](?![A-Za-z]) | [{"".join(_LETTERS)}] )
                    (?: _\{{(?P<inside>[^{{}}]*)\}} | _(?P<below>[A-Za-z]+|\d+) )?  (?P<low>[₀-₉]*)  (?: \[(?P<index>\d+|[a-z])\] )? )
    | (?P<name>     (?P<stem> (?:kl|score|var)\b | [A-Za-z]+(?:_[A-Za-z]{{2,}})+ | [A-Za-z]{{2,}}(?=_|[₀-₉]) )
                    (?: _(?P<letter_below>[a-z]) )?  (?P<low_below>[₀-₉]*) )
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
    r"`[^`]*`|«[^»]*»|(?:[a-z]+\.)?[a-z]{2,}(?:_[a-z]+)+(?:\[\w+\])?"
    r"|\b(?:values|returns|rewards|scores|advantages|responses)(?:\[\w+\]|(?= = | \(\d|（[βγ]))"
)
"""What is no formula in a sentence: code, and what stands in quotes (a token's text may be anything)."""
_OPERANDS = ("number", "symbol", "function", "name", "size", "half", "power_of", "close")
_NOT_FIRST = ("space", "sign", "close", "other", "power_of")
_NOT_LAST = ("space", "sign", "open", "other", "function")


def tex(formula: str) -> str:
    """The formula in TeX: ASCII, with its numbers as they are (6.8e−06 as 6.8 × 10⁻⁶)."""
    out, closing = "", list[str]()
    for found in _TOKEN.finditer(formula):
        kind, text = found.lastgroup, found[0]
        if kind == "number" and found["power"]:
            text = rf"{found['digits']} \times 10^{{{int(found['power'].replace('−', '-'))}}}"
            text = f"({text})" if out.endswith("/") else text  # what is divided by is all of it
        elif kind == "function":
            text = _FUNCTIONS[text]
        elif kind == "symbol":
            text = _symbol(found)
        elif kind == "name":
            text = rf"\mathrm{{{found['stem']}}}".replace("_", r"\_") + _below(
                (found["letter_below"] or "") + _ascii(found["low_below"])
            )
        elif kind == "words":
            before, after = (
                " " if formula[k : k + 1] == " " else "" for k in (found.start() - 1, found.end())
            )
            text = rf"\text{{{before}{text}{after}}}"
        elif kind == "size":
            text = f"|{tex(text[1:-1])}|"
        elif kind == "power_of":
            text = f"^{{{_ascii(text)}}}"
        elif kind == "open":
            closing.append("}" if len(text) > 1 else ")" if text == "(" else "]")
            text = {"^(": "^{", "√(": r"\sqrt{"}.get(text, text)
        elif kind == "close" and closing:
            text = closing.pop()
        else:
            text = _SIGNS.get(text, text)
        out += f" {text}" if re.search(r"\\[A-Za-z]+$", out) and text[0].isalpha() else text
    return out


def _symbol(found: re.Match[str]) -> str:
    below = found["below"] or ""
    parts = [
        rf"\mathrm{{{below}}}" if len(below) > 1 and below.isalpha() else below,
        tex(found["inside"] or ""),
    ]
    parts += [_ascii(found["low"]), found["index"] or ""]
    return _LETTERS.get(found["letter"], found["letter"]) + _below(
        ",".join(part for part in parts if part)
    )


def _below(text: str) -> str:
    return f"_{{{text}}}" if text else ""


def _ascii(text: str) -> str:
    """₃ as 3, ⁿ⁻¹ as n-1."""
    return unicodedata.normalize("NFKC", text).replace("−", "-")


def prose(text: str) -> str:
    """The sentence as Markdown: its formulas between dollars, code and column names between backquotes."""
    out, end = "", 0
    for found in _CODE.finditer(text):
        out += _with_formulas(text[end : found.start()])
        code = found[0]
        out += safe(code) if code[0] == "«" else code if code[0] == "`" else f"`{code}`"
        end = found.end()
    return out + _with_formulas(text[end:])


def safe(text: str) -> str:
    """What somebody wrote, so that Markdown takes none of it for its own."""
    return re.sub(r"[\\`*_$<>&|~\[\]#]", lambda found: f"&#{ord(found[0])};", text)


def _with_formulas(text: str) -> str:
    out, end = "", 0
    for start, stop in _formulas(text):
        left, right = (" " if text[k : k + 1].isalnum() else "" for k in (start - 1, stop))
        out += f"{text[end:start]}{left}${tex(text[start:stop])}${right}"
        end = stop
    return out + text[end:]


def _formulas(text: str) -> list[tuple[int, int]]:
    """Where formulas stand: operands joined by signs, as long as possible, with something in them that is no plain number or word."""
    runs, run = [], list[re.Match[str]]()
    for found in [*_TOKEN.finditer(text), None]:
        if found is not None and _goes_on(run, found):
            run.append(found)
            continue
        run = _trimmed(run)
        if any(map(_is_mathematical, run)) or _applied(run):
            runs.append((run[0].start(), run[-1].end()))
        run = [found] if found is not None and _goes_on([], found) else []
    return runs


def _goes_on(run: list[re.Match[str]], found: re.Match[str]) -> bool:
    kind, last = found.lastgroup, run[-1].lastgroup if run else None
    if kind == "other":
        return found[0] == "," and _depth(run) > 0
    if (
        last == "space"
        and len(run) > 1
        and kind in ("number", "symbol", "function", "name", "size", "open")
    ):
        before = run[-2]
        return (
            before.lastgroup not in _OPERANDS
            or before.lastgroup == "function"
            or before["letter"] in ("Σ", "Π")
        )
    return kind != "words"


def _depth(run: list[re.Match[str]]) -> int:
    return sum((found.lastgroup == "open") - (found.lastgroup == "close") for found in run)


def _trimmed(run: list[re.Match[str]]) -> list[re.Match[str]]:
    """Without spaces, signs and unmatched brackets at its ends, a function of what is no formula, or an article; the minus of −V stays."""
    while run:
        first, last, depth = run[0], run[-1], _depth(run)
        minus = first[0] == "−" and run[1:] and run[1].lastgroup in _OPERANDS
        if (
            last.lastgroup in _NOT_LAST
            or last[0] == "a"
            or (last.lastgroup == "close" and depth < 0)
        ):
            run = run[:-1]
        elif not minus and (
            first.lastgroup in _NOT_FIRST or (first.lastgroup == "open" and depth > 0)
        ):
            run = run[1:]
        else:
            break
    return run


def _is_mathematical(found: re.Match[str]) -> bool:
    if found.lastgroup == "symbol":
        return len(found[0]) > 1 or found["letter"] in _LETTERS
    return found.lastgroup in ("size", "power_of", "half") or bool(
        found["letter_below"] or found["low_below"]
    )


def _applied(run: list[re.Match[str]]) -> bool:
    """Two operands with a sign between them, or V(…)."""
    run = [found for found in run if found.lastgroup != "space"]
    pairs = list(itertools.pairwise(run))
    signs = any(
        a.lastgroup in _OPERANDS and b.lastgroup == "sign" and b[0] not in "/…" for a, b in pairs
    )
    return signs or any(
        a.lastgroup in ("symbol", "function") and b[0] == "(" and a.end() == b.start()
        for a, b in pairs
    )
