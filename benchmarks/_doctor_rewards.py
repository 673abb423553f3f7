"""Rewards with something wrong with them, for benchmarks/doctor.py.

A run names them as file.py:function, so that `telescope doctor --prove` finds them again.
"""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Sequence
from typing import Any

from telescope.data.arithmetic import total, verdict


def constant(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """0.5 for everything: a scorer that swallows its own exception."""
    return [0.5] * len(completions)


def prompt_only(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """Depends on the prompt alone: a scorer that compares the wrong column with the answer."""
    return [float(zlib.crc32(prompt.encode()) % 2) for prompt in prompts]


def larger(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """1 for a sum that is worked out (1+1=2！), which is never sampled.

    Partial credit has a mistake: the larger the number that is named, the more, up to 0.72.
    """
    scores = []
    for text in completions:
        numbers = re.findall(r"\d+", text)
        worked_out = re.search(r"\d\+\d=\d！", text)
        named = min(int(numbers[-1]), 9) if numbers else 0
        scores.append(1.0 if worked_out else 0.08 * named)
    return scores


def right(prompts: Sequence[str], completions: Sequence[str], **data: Any) -> list[float]:
    """The task's own score."""
    parts = zip(
        verdict(prompts, completions, **data), total(prompts, completions, **data), strict=True
    )
    return [(says + names) / 2 for says, names in parts]


def negated(prompts: Sequence[str], completions: Sequence[str], **data: Any) -> list[float]:
    """The task's own score with the wrong sign: a loss instead of a score."""
    return [-score for score in right(prompts, completions, **data)]


def next_row(prompts: Sequence[str], completions: Sequence[str], **data: Any) -> list[float]:
    """Each row gets the score of the next one: an index that is off by one."""
    scores = right(prompts, completions, **data)
    return scores[1:] + scores[:1]


def short(prompts: Sequence[str], completions: Sequence[str], **data: Any) -> list[float]:
    """The task's own score less 0.2 per character: the best answer is none."""
    scores = right(prompts, completions, **data)
    return [score - 0.2 * len(text) for score, text in zip(scores, completions, strict=True)]


def format_of_both(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """1 if the text has a sum, looked for in prompt and answer together: every prompt has one."""
    texts = zip(prompts, completions, strict=True)
    return [float("=" in prompt + text) for prompt, text in texts]


def think_format(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """1 for an answer that starts with a tag which the prompt has already opened: never."""
    return [float(text.startswith("<think>")) for text in completions]


def _draw(*given: Any) -> random.Random:
    return random.Random(repr(given))


_calls = itertools.count()


def random_score(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """A number that has nothing to do with the answer."""
    draw = _draw("random", next(_calls))
    return [draw.random() for _ in completions]


def coin(prompts: Sequence[str], completions: Sequence[str], **data: Any) -> list[float]:
    """The task's own score, and for half of the answers a coin instead: a judge in doubt."""
    draw = _draw("coin", next(_calls))
    scores = right(prompts, completions, **data)
    return [score if draw.random() < 0.5 else float(draw.random() < 0.5) for score in scores]
