"""The built-in example: two answers to one prompt, one right and one wrong, as one batch.

Both begin with the same four tokens, so V, log-probabilities and rewards are the same up to there:
a critic sees only what was written before. V rises and falls in both. After the wrong digit it
falls to 0.05. In the update, the right digit is clipped above and the wrong one below.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from telescope.explain.numbers import batch_from_numbers
from telescope.explain.sample import Sample

_SHARED: dict[str, list[Any]] = {
    "tokens": ["是", "的", "，", "等于"],
    "old": [-0.36, -0.20, -0.15, -0.51],
    "ref": [-0.46, -0.25, -0.10, -0.61],
    "new": [-0.33, -0.20, -0.16, -0.45],
    "values": [0.50, 0.62, 0.60, 0.55],
    "new_values": [0.50, 0.55, 0.56, 0.54],
}
"""The tokens with which both answers begin."""


def _answer(score: float, **ending: list[Any]) -> dict[str, Any]:
    """An answer: the shared tokens, then its own."""
    columns = {name: [*shared, *ending[name]] for name, shared in _SHARED.items()}
    return {"score": score, **columns}


_RIGHT = _answer(
    1.0,
    tokens=["2", "！"],
    old=[-0.40, -0.05],
    ref=[-0.60, -0.10],
    new=[-0.20, -0.04],
    values=[0.70, 0.92],
    new_values=[0.68, 0.95],
)
_WRONG = _answer(
    0.0,
    tokens=["3", "！"],
    old=[-1.20, -0.06],
    ref=[-1.00, -0.10],
    new=[-1.75, -0.07],
    values=[0.70, 0.05],
    new_values=[0.68, 0.04],
)

BATCH = batch_from_numbers(
    {"prompt": "请问1+1=2？", "kl_coef": 0.1, "responses": [_RIGHT, _WRONG]},
)
"""The right answer and the wrong one, whitened together."""
RIGHT, WRONG = BATCH


def in_english() -> list[Sample]:
    """The same numbers for an answer in English."""
    shared = ["Yes", ",", " it", " equals"]
    texts = [[*shared, f" {digit}", "!"] for digit in (2, 3)]
    return [
        replace(
            sample,
            prompt="Is 1+1=2?",
            response="".join(text),
            token_bytes=[piece.encode() for piece in text],
        )
        for sample, text in zip(BATCH, texts, strict=True)
    ]
