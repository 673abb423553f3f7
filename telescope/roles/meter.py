"""Sums over tokens while a step runs; a metric is their quotient."""

from __future__ import annotations

import torch
from torch import Tensor

from telescope.models.parallel import Ranks


class Meter:
    """Sums and counts per metric, so that a mean is over tokens (or updates), never a mean of means.

    Tensors stay on their device until `result`, the one place that waits for it, and for the other processes of a role.
    """

    def __init__(self, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or Ranks()
        self._sums: dict[str, Tensor | float] = {}
        self._counts: dict[str, Tensor | float] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float = 0.0) -> None:
        """Adds to the numerator and the denominator of a mean."""
        total = total.detach() if isinstance(total, Tensor) else total
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0.0) + count

    def once(self, name: str, total: Tensor | float) -> None:
        """Adds what is the same in every process, with a count of 1."""
        self.add(name, total if self._ranks.rank == 0 else 0.0, float(self._ranks.rank == 0))

    def tokens(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Adds per-token values [B, T], weighted by token."""
        self.add(
            name, values.detach().to(torch.float64).masked_fill(~mask.bool(), 0.0).sum(), mask.sum()
        )

    def result(self) -> dict[str, float]:
        table = torch.tensor(
            [[float(total), float(self._counts[name])] for name, total in self._sums.items()],
            dtype=torch.float64,
        )
        return {
            name: total / max(count, 1.0)
            for name, (total, count) in zip(
                self._sums, self._ranks.sum(table).tolist(), strict=True
            )
        }
