"""What an answer says of a response with changed settings is as true as of the recorded one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from telescope.explain.ask.retry import retry
from telescope.explain.claims import evaluate
from telescope.explain.facts import facts
from telescope.explain.questions import missing_for, questions
from tests.explain.grid import cells

pytestmark = pytest.mark.slow

CHANGES: list[dict[str, Any]] = [
    {"lam": 0.0},
    {"lam": 1.0},
    {"gamma": 0.9},
    {"kl_coef": 0.0},
    {"clip_low": 0.1, "clip_high": 0.1},
    {"whiten": False},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_every_claim_holds_after_a_change(changes: dict[str, Any]) -> None:
    every = list(cells())
    whitened = [cell for cell in every if cell.sample.already_whitened]
    chosen = random.Random(0).sample(every, 25) + whitened[:3]
    wrong: list[str] = []
    checked = 0
    for cell in chosen:
        tried = retry(cell.sample, changes, "en")
        if not any(tried.mask):
            continue
        known = facts(tried, "en", tried.mask.index(1))
        for question in questions().values():
            if missing_for(question, tried):
                continue
            for sentence in question.sentences:
                if sentence.claim and not sentence.simulated and sentence.holds(known):
                    checked += 1
                    if not evaluate(sentence.claim, known):
                        wrong.append(f"{question.id}: {sentence.claim} in {cell.name}")
    assert checked > 1000
    assert wrong == []
