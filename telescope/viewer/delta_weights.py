"""How much of each later δ an advantage holds: the ribbons of the fence picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from telescope.algorithms.definitions.base import Actions
from telescope.algorithms.definitions.critic import DELTAS
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings

MOST_WEIGHTS = 64
LEAST_WEIGHT = 0.005
"""A ribbon that is thinner than this is not drawn."""


def delta_weights(full: Sample) -> list[float]:
    """How much of the δ k tokens ahead an advantage holds; empty where it is not such a sum."""
    if not full.written or not {"deltas", "advantages", "values"} <= full.columns.keys():
        return []
    return weights_of(full.numbers("deltas"), full.numbers("advantages"), full.settings)


def weights_of(
    deltas: Sequence[float], advantages: Sequence[float], settings: Settings
) -> list[float]:
    """The weights, found by trying.

    Where every V is 0 and the last token alone has reward 1, a token's advantage is the weight of
    the last δ.
    """
    count = len(deltas)
    definition = settings.estimator_definition
    if not count or not definition.needs.critic:
        return []
    tried = Actions({"token_level_rewards": [0.0] * (count - 1) + [1.0], "values": [0.0] * count})
    DELTAS.apply(tried, settings)
    definition.fill(tried, settings.credit)
    if "advantages" not in tried:
        return []
    weights = tried["advantages"][::-1]
    for k in (0, count - 1):
        total = math.fsum(w * d for w, d in zip(weights, deltas[k:], strict=False))
        if not math.isclose(total, advantages[k], rel_tol=1e-3, abs_tol=1e-4):
            return []
    return list(_worth_drawing(weights))


def _worth_drawing(weights: Iterable[float]) -> Iterator[float]:
    for k, weight in enumerate(weights):
        if k == MOST_WEIGHTS or (k and abs(weight) < LEAST_WEIGHT):
            return
        yield float(f"{weight:.7g}")
