"""Says on the terminal what keeps failing: a tool, or a reward that had to be asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from telescope.batch import TokenBatch

_SAID_AT = (3, 30, 300, 3000)
"""Failures of one kind after which they are reported."""


class Trouble:
    """Counts failures by kind, and reports a kind when it has happened often."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def lines(self, step: int, batch: TokenBatch, rewards: Sequence[str]) -> list[str]:
        """What to say after a step; `rewards` are what the reward functions reported."""
        found: dict[str, tuple[int, str]] = {}
        for row in batch.info:
            if row.tools is not None and row.tools.error is not None:
                kind = "a tool failed: " + row.tools.error.partition(":")[0]
                times, _ = found.get(kind, (0, ""))
                found[kind] = (times + row.tools.failures, f"a tool failed: {row.tools.error}")
        for text in rewards:
            kind = text[:80]  # the rest differs from time to time
            times, _ = found.get(kind, (0, ""))
            found[kind] = (times + 1, text)
        said = []
        for kind, (times, text) in found.items():
            before = self.counts[kind]
            self.counts[kind] += times
            if any(before < limit <= self.counts[kind] for limit in _SAID_AT):
                said.append(f"step {step}: {text} ({self.counts[kind]} times so far)")
        return said
