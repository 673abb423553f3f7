"""Finds the question that somebody means: BM25 over every known wording, without a model.

Each wording is a document of its own, and the best wording of a question counts. Two readings are
added: of meaning (`tokens.words`) and of form (`tokens.pieces`). A score is divided by the one that
the query would get from itself, so that 1 is the same question word for word. What no wording knows
counts against the query: that is how a question about something else is told apart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray

from telescope.explain.ask.tokens import foreign, normalise, pieces, words

Read = Callable[[str], tuple[str, ...]]
Scores = NDArray[np.float64]

K1 = 0.9
B = 0.35
"""How fast repeated words count less, and how much a long wording is held against it."""
FORM = 0.3
"""Share of the second reading, of form, in a wording's score."""
CROWD = 0.5
"""Share of a question's next best wordings in its score."""
COUNTED = 6
"""Wordings of a question that count."""
FOREIGN = 0.6
"""What is left of a score for each thing that the message names and no wording does."""
ENOUGH = 0.2
"""A question with a lower score is not taken for the one that was meant."""


@dataclass(frozen=True)
class Hit:
    """A question, and how well it fits."""

    id: str
    score: float


class _Reading:
    """One BM25 index over all wordings."""

    def __init__(self, wordings: Sequence[str], read: Read) -> None:
        self.read = read
        documents = [list(read(wording)) for wording in wordings]
        self.average = sum(map(len, documents)) / max(1, len(documents))
        self.count = len(documents)
        self.frequency = Counter(token for document in documents for token in set(document))
        self.bm25: Any = bm25s.BM25(k1=K1, b=B, method="lucene")
        self.bm25.index(documents, show_progress=False)

    def rarity(self, token: str) -> float:
        """The weight of a token (its inverse document frequency)."""
        holding = self.frequency.get(token, 0)
        return math.log(1 + (self.count - holding + 0.5) / (holding + 0.5))

    def scores(self, text: str) -> Scores:
        """For every wording, the score divided by that of the query itself."""
        query = list(dict.fromkeys(self.read(text)))
        if not query:
            return np.zeros(self.count)
        length = len(query) / max(self.average, 1e-9)
        saturation = 1 / (1 + K1 * (1 - B + B * length))
        own = sum(self.rarity(token) for token in query) * saturation
        known = [token for token in query if token in self.frequency]
        if not known:
            return np.zeros(self.count)
        found: Scores = np.asarray(self.bm25.get_scores(known), dtype=np.float64)
        return found / own


class Index:
    """All wordings of all questions, by question."""

    def __init__(self, wordings: Mapping[str, Iterable[str]]) -> None:
        self.wordings: list[str] = []
        self._of: dict[str, range] = {}
        for key, each in wordings.items():
            first = len(self.wordings)
            self.wordings += each
            self._of[key] = range(first, len(self.wordings))
        self._exact = {_plain(each): key for key in self._of for each in self.of(key)}
        self._meaning = _Reading(self.wordings, words)
        self._form = _Reading(self.wordings, pieces)

    def of(self, key: str) -> list[str]:
        """The wordings of a question."""
        return [self.wordings[at] for at in self._of[key]]

    def knows(self, token: str) -> bool:
        """Whether a word (as `tokens.words` gives it) is in any wording."""
        return token in self._meaning.frequency

    def search(self, text: str) -> list[Hit]:
        """Every question, the best first."""
        scores = (1 - FORM) * self._meaning.scores(text) + FORM * self._form.scores(text)
        same = self._exact.get(_plain(text))
        hits: list[Hit] = []
        named = foreign(text)
        for key, at in self._of.items():
            strange = named and named.difference(*(foreign(self.wordings[i]) for i in at))
            best = sorted(at, key=lambda i: -scores[i])[:COUNTED]
            crowd = [scores[i] for i in best[1:]]
            follow = sum(crowd) / len(crowd) if crowd else scores[best[0]]
            total = float((1 - CROWD) * scores[best[0]] + CROWD * follow)
            score = 1.0 if key == same else min(0.99, total * FOREIGN ** len(strange))
            hits.append(Hit(key, score))
        return sorted(hits, key=lambda hit: -hit.score)


def _plain(text: str) -> str:
    """A wording without spaces and punctuation."""
    return re.sub(r"[\s\W_]+", "", normalise(text))
