"""Reward shaping (running moments, overlong penalty), and how answers are counted."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Running mean and spread of all scores so far, in float64.

        d = μ_batch − μ      μ ← μ + d·m/n      S ← S + S_batch + d²·(n − m)·m/n      σ = √(S/n)

    m is the size of the batch, n the number of all scores with it. Chan et al. 1979.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """S = Σ (score − μ)²."""

    def add(self, scores: Sequence[float]) -> Moments:
        """These moments with one more batch of scores."""
        if not scores:
            return self
        size = len(scores)
        count = self.count + size
        mean = math.fsum(scores) / size
        apart = mean - self.mean
        own_squares = math.fsum((score - mean) ** 2 for score in scores)
        squares = own_squares + apart**2 * self.count * size / count
        return Moments(count, self.mean + apart * size / count, self.squares + squares)

    @property
    def std(self) -> float:
        """σ; 1 where the scores differ by rounding only, so that rounding is not blown up."""
        std = math.sqrt(self.squares / self.count) if self.count else 0.0
        rounding = 1e-6 * max(abs(self.mean), 1.0)
        return std if std > rounding else 1.0


def overlong_penalty(lengths: Tensor, *, limit: int, tokens: int, penalty: float) -> Tensor:
    """0 up to `limit` − `tokens`, then falling evenly to −`penalty` at `limit`, [B].

        −penalty · clip((l − (limit − tokens))/tokens, 0, 1)

    Yu et al. 2025 (DAPO), arXiv:2503.14476.
    """
    overlong = (lengths.double() - (limit - tokens)) / tokens
    return -penalty * overlong.clamp(0.0, 1.0)


def pass_at_k(right: int, n: int, k: int) -> float:
    """The chance that k of n samples, `right` of which are right, hold a right one.

        1 − C(n − right, k) / C(n, k)

    Unbiased, unlike 1 − (1 − right/n)^k. Chen et al. 2021, arXiv:2107.03374.
    """
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def majority(answers: Sequence[Hashable]) -> int | None:
    """Index of the first copy of the most frequent answer; of equally frequent ones, the earliest.

    An answer that is None does not vote. None if there is no vote.
    """
    votes = [answer for answer in answers if answer is not None]
    if not votes:
        return None
    return answers.index(max(votes, key=votes.count))
