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
        happened = []
        for row in batch.info:
            if row.tools is not None and row.tools.error is not None:
                text = f"a tool failed: {row.tools.error}"
                kind = "a tool failed: " + row.tools.error.partition(":")[0]
                happened.append((kind, text, row.tools.failures))
        happened += [(text[:80], text, 1) for text in rewards]  # the rest differs each time
        before = self.counts.copy()
        last: dict[str, str] = {}
        for kind, text, times in happened:
            self.counts[kind] += times
            last[kind] = text
        return [
            f"step {step}: {text} ({self.counts[kind]} times so far)"
            for kind, text in last.items()
            if any(before[kind] < limit <= self.counts[kind] for limit in _SAID_AT)
        ]
