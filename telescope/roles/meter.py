"""Means over tokens while an update runs."""

from __future__ import annotations

import torch
from torch import Tensor

from telescope.models.parallel import Ranks

Number = Tensor | float


class Mean:
    """A sum and a count, added up over micro-batches and ranks.

    Tensors stay on their device until `value` is called: only that waits for the device.
    """

    def __init__(self, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or Ranks()
        self.total: Number = 0.0
        self.count: Number = 0.0

    def add(self, total: Number, count: Number = 0.0) -> None:
        """Adds to the numerator and to the denominator."""
        self.total = self.total + (total.detach() if isinstance(total, Tensor) else total)
        self.count = self.count + count

    def tokens(self, values: Tensor, mask: Tensor) -> None:
        """Adds the values [B, T] of the tokens in `mask`, each with weight 1."""
        exact = values.detach().to(torch.float64)
        self.add(exact.masked_fill(~mask.bool(), 0.0).sum(), mask.sum())

    def value(self) -> float:
        """The mean over all ranks. Every rank must call it: it is a collective."""
        return _means([self], self._ranks)[0]


class Meter:
    """The metrics of one update: a `Mean` for each name, so never a mean of means."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or Ranks()
        self._means: dict[str, Mean] = {}

    def add(self, name: str, total: Number, count: Number = 0.0) -> None:
        """Adds to the numerator and to the denominator of a metric."""
        self._mean(name).add(total, count)

    def once(self, name: str, total: Number) -> None:
        """Adds a number that is the same on every rank, with a count of 1."""
        if self._ranks.rank == 0:
            self.add(name, total, 1.0)
        else:
            self.add(name, 0.0, 0.0)

    def tokens(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Adds per-token values [B, T], each token with weight 1."""
        self._mean(name).tokens(values, mask)

    def result(self) -> dict[str, float]:
        """All metrics, over all ranks. Every rank must call it: it is a collective."""
        means = _means(list(self._means.values()), self._ranks)
        return dict(zip(self._means, means, strict=True))

    def _mean(self, name: str) -> Mean:
        return self._means.setdefault(name, Mean(self._ranks))


def _means(means: list[Mean], ranks: Ranks) -> list[float]:
    """The means over all ranks. Rows that several ranks share count once."""
    table = torch.tensor(
        [[float(mean.total), float(mean.count)] for mean in means], dtype=torch.float64
    )
    if not ranks.counts:
        table.zero_()
    return [total / max(count, 1.0) for total, count in ranks.sum(table).tolist()]
