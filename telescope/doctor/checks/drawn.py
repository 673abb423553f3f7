"""Does V[i] know token i? A test by chance, for ledgers without several answers to one prompt.

Given its state, token i was drawn with a known probability p. V[i] is from before the draw, so it
cannot depend on the outcome. Tokens with p near 0 or 1 say nothing; the others are weighted by 1/p,
so that every outcome stands for the same states. Then the share of the variance of V[i] that the
token explains is about 0, unless V[i] has seen it.
"""

from __future__ import annotations

import numpy as np

from telescope.doctor.check import Sign
from telescope.doctor.curves import Floats
from telescope.doctor.recorded import Recorded, RecordedStep
from telescope.doctor.thresholds import DRAWN_HIGH, DRAWN_LOW, DRAWN_TOKENS, KNOWS_TOKEN

_POSITIONS = 64
"""First tokens of a response that are looked at."""
_LEAST_ROWS = 8
"""Responses of a step that are as long as the position."""
_LEAST_OF_A_KIND = 4
"""Draws of a token at a position, so that it has a mean."""


def values_know_their_token(recorded: Recorded) -> Sign | None:
    """Whether the token explains V from before it."""
    steps = [step for step in recorded.steps() if step.settings.estimator_definition.needs.critic]
    drawn = [_drawn(step) for step in steps]
    found = np.concatenate(drawn) if drawn else np.zeros((0, 4))
    if len(found) < DRAWN_TOKENS:
        return None
    _, inverse, counts = np.unique(found[:, :2], axis=0, return_inverse=True, return_counts=True)
    kind_of = inverse.ravel()
    usual = counts[kind_of] >= _LEAST_OF_A_KIND
    if usual.sum() < DRAWN_TOKENS:
        return None
    share = _explained(kind_of[usual], found[usual, 2], found[usual, 3])
    if share < KNOWS_TOKEN:
        return None
    return Sign(
        since=steps[0].step,
        numbers={
            "said_en": f"Token i explains {share:.0%} of the variance of V[i] over "
            f"{int(usual.sum())} tokens that were drawn by chance. V[i] is from before token i and "
            "cannot know it: these values have seen their token.",
            "said_zh": f"在 {int(usual.sum())} 个随机抽到的 token 上，token i 解释了 V[i] 方差的 "
            f"{share:.0%}。V[i] 是写 token i 之前的，不可能知道它：这些值已经看到了自己的 token。",
        },
        confidence=0.85,
    )


def _drawn(step: RecordedStep) -> Floats:
    """Rows of (position, token, V in standard deviations of its position, weight)."""
    values = step.tokens_of("values")
    logs = step.tokens_of("old_log_probs")
    ids = step.rows("responses")
    masks = step.tokens_of("response_mask")
    if not values or not logs:
        return np.zeros((0, 4))
    found: list[tuple[float, float, float, float]] = []
    longest = max((len(row) for row in ids), default=0)
    for i in range(min(longest, _POSITIONS)):
        rows = [row for row in range(len(step)) if len(ids[row]) > i and masks[row][i]]
        here = np.array([values[row][i] for row in rows])
        if len(rows) < _LEAST_ROWS or not np.isfinite(here).all() or here.std() < 1e-6:
            continue
        for row, value in zip(rows, (here - here.mean()) / here.std(), strict=True):
            chance = float(np.exp(min(logs[row][i], 0.0)))
            if DRAWN_LOW < chance < DRAWN_HIGH:
                found.append((i, ids[row][i], float(value), 1 / chance))
    return np.array(found).reshape(-1, 4)


def _explained(kind_of: np.ndarray, values: Floats, weights: Floats) -> float:
    """The weighted share of the variance between kinds, corrected for their number."""
    total = np.bincount(kind_of, weights)
    mean = np.bincount(kind_of, weights * values) / np.maximum(total, 1e-12)
    within = float((weights * (values - mean[kind_of]) ** 2).sum())
    around = float((weights * (values - np.average(values, weights=weights)) ** 2).sum())
    count = float(weights.sum() ** 2 / (weights**2).sum())
    kinds = int((total > 0).sum())
    if around < 1e-12 or count - kinds < _LEAST_ROWS:
        return 0.0
    return 1 - (within / (count - kinds)) / (around / (count - 1))
