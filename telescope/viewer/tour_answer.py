"""An answer as the tour shows it: the tokens that the policy wrote, and which of them are drawn.

Time is counted in those tokens. Of a long answer a few neighbours are drawn, and the last one.
"""

from __future__ import annotations

import math

from telescope.explain.arithmetic import fill
from telescope.explain.sample import ActorUpdate, Sample
from telescope.explain.text import pieces, shorten

SHOWN = 7
"""Tokens of one answer in the picture."""
AHEAD = 4
"""How many tokens before the largest change the arcs end, at most."""
COLUMNS = {
    "V": "values",
    "r": "token_level_rewards",
    "d": "deltas",
    "A": "advantages",
    "R": "returns",
    "W": "whitened",
}


class Answer:
    """A response with every column that follows, at the tokens that the policy wrote."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.full = fill(sample)
        self.at = sample.written
        texts = pieces(sample.token_bytes)
        self.texts = [shorten(texts[t].strip("␣") or texts[t], 14) for t in self.at]
        self.columns = {
            name: self.full.numbers(column)
            for name, column in COLUMNS.items()
            if column in self.full.columns
        }
        if not sample.settings.estimator_definition.needs.critic:
            for name in ("V", "d", "R"):
                self.columns.pop(name, None)

    def __len__(self) -> int:
        return len(self.at)

    def has(self, *names: str) -> bool:
        return all(name in self.columns for name in names)

    def after(self, k: int) -> float:
        """V after step k."""
        is_last = k + 1 == len(self)
        return self.sample.bootstrap if is_last else self.columns["V"][k + 1]

    @property
    def update(self) -> ActorUpdate | None:
        """The last update of the policy that has ratios."""
        found = [update for update in self.full.actor_updates if update.ratio]
        return found[-1] if found else None

    @property
    def outcome(self) -> float:
        return math.fsum(self.columns["r"])

    # ---- which tokens ----

    def focus(self) -> int:
        """The step after which V changes most; without V, the one with the largest |A|."""
        before_last = range(max(len(self) - 1, 1))
        if self.has("V"):
            return max(before_last, key=lambda k: abs(self.after(k) - self.columns["V"][k]))
        if self.has("A"):
            return max(before_last, key=lambda k: abs(self.columns["A"][k]))
        return 0

    def peak(self) -> int:
        """The step with the largest surprise, of those in the picture."""
        deltas = self.columns["d"]
        return max(self.shown(), key=lambda k: abs(deltas[k]))

    def anchor(self) -> int:
        """The step at which the arcs end."""
        return max(self.focus() - AHEAD, 0)

    def shown(self) -> list[int]:
        """The steps in the picture."""
        count = len(self)
        if count <= SHOWN:
            return list(range(count))
        start = min(self.anchor(), count - SHOWN)
        return [*range(start, start + SHOWN - 1), count - 1]
