"""Which token a view is about, unless the reader chooses one."""

from __future__ import annotations

import unicodedata

from telescope.explain.sample import Sample
from telescope.explain.text import pieces


def instructive(full: Sample) -> int:
    """The token with the largest |A| that is a word and not the last one (|Â| if A is not known).

    At the last token A is only δ, and punctuation carries no meaning. Where there are no words
    before the last token, any token before it counts, or the last one itself.
    """
    sizes = sizes_of(full)
    texts = pieces(full.token_bytes)
    earlier = full.written[:-1]
    words = [t for t in earlier if not is_punctuation(texts[t])]
    candidates = words or earlier or full.written
    return max(candidates, key=lambda t: abs(sizes[t]), default=0)


_SIZES = {"A": "advantages", "Â": "whitened", "r": "token_level_rewards"}
"""Symbol and column of what makes a token stand out, the first that is known."""


def sizes_of(full: Sample) -> list[float]:
    """A; where that is not known Â, or else rewards."""
    symbol = size_symbol(full)
    return full.columns[_SIZES[symbol]] if symbol else [0.0] * len(full)


def size_symbol(full: Sample) -> str:
    """Which of them that is; empty where none is known."""
    return next((symbol for symbol, name in _SIZES.items() if name in full.columns), "")


def is_punctuation(text: str) -> bool:
    """Whether a token has neither letters, digits nor signs such as + and =."""
    return not any(unicodedata.category(c)[0] in "LNS" and c not in "␣↵⇥␍" for c in text)
