"""What is done to scores before they are paid, and how answers are counted."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Mean and spread of all scores so far, in float64; a batch is merged in by Chan et al. 1979.

    μ ← μ + d·m/n      S ← S + S_batch + d²·(n − m)·m/n      d = mean of the batch − μ, m its size, n all      σ = √(S/n)
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """S = Σ (score − μ)²."""

    def add(self, scores: Sequence[float]) -> Moments:
        if not scores:
            return self
        size, count = len(scores), self.count + len(scores)
        mean = math.fsum(scores) / size
        apart = mean - self.mean
        squares = (
            math.fsum((score - mean) ** 2 for score in scores)
            + apart**2 * self.count * size / count
        )
        return Moments(count, self.mean + apart * size / count, self.squares + squares)

    @property
    def std(self) -> float:
        """σ; 1 where the scores do not differ but by rounding, so that nothing is blown up."""
        std = math.sqrt(self.squares / self.count) if self.count else 0.0
        return std if std > 1e-6 * max(abs(self.mean), 1.0) else 1.0


def overlong_penalty(lengths: Tensor, *, limit: int, tokens: int, penalty: float) -> Tensor:
    """0 up to `limit` − `tokens`, then falling evenly to −`penalty` at `limit`, [B].

        −penalty · clip((l − (limit − tokens))/tokens, 0, 1)

    Yu et al. 2025 (DAPO), arXiv:2503.14476.
    """
    return -penalty * ((lengths.double() - (limit - tokens)) / tokens).clamp(0.0, 1.0)


def pass_at_k(right: int, n: int, k: int) -> float:
    """The chance that k of n samples, `right` of which are right, hold a right one: 1 − C(n − right, k)/C(n, k).

    Chen et al. 2021, arXiv:2107.03374: unbiased, unlike 1 − (1 − right/n)^k.
    """
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def majority(answers: Sequence[Hashable]) -> int | None:
    """Where the most frequent answer stands first; of equally frequent ones the earliest wins. None abstains."""
    votes = [answer for answer in answers if answer is not None]
    return answers.index(max(votes, key=votes.count)) if votes else None
