"""The tour: an answer in eight steps, each with a guess before the truth.

`tour_of` makes everything that the page shows of it. Every number and every sentence about a number
is made here; the page draws them, and says how far off a guess was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.chat import user_turn
from telescope.explain.example import BATCH, in_english
from telescope.explain.sample import Sample
from telescope.viewer.payload import number_of, shorten_text
from telescope.viewer.run_data import RunData
from telescope.viewer.tour_answer import Answer
from telescope.viewer.tour_compared import compared_facts, group_facts, update_facts
from telescope.viewer.tour_facts import Facts, answer_facts
from telescope.viewer.tour_guesses import GUESSES
from telescope.viewer.tour_texts import SKINS, StepTexts, chosen, paragraph, steps

WITH_CRITIC = ("V", "r", "d", "lam", "A", "R", "W", "rho")
WITHOUT_CRITIC = ("r", "o", "b", "sigma", "gA", "share", "W", "rho")
"""Steps in their order. A step whose facts the answer does not have is left out."""
MOST_TEXT = 600
"""Characters of a prompt that are shown."""
MOST_ANSWER = 20_000
"""Characters of a whole answer."""
MOST_ANSWERS = 16
"""Answers to one prompt that are drawn."""
EXAMPLE = 1
"""The wrong one of the two built-in answers: V falls at its last digit but one."""


def tour_of(batch: Sequence[Sample], position: int, *, right: float = 1.0) -> dict[str, Any]:
    """The tour of one answer of a batch. `right`: the score from which an answer is right.

    `batch` may hold only some answers of the step: `sample.count` says how many there are.
    """
    told = Told(batch, position)
    return {
        "kind": "critic" if told.has_critic else "outcome",
        "prompt": question_of(told.main),
        "answers": [picture_of(x, right) for x in told.answers],
        "group": told.group_dots(),
        "steps": told.steps(),
    }


def example_tour() -> dict[str, Any]:
    """The tour of the built-in example, which needs no run: the same numbers in two languages."""
    batches = {"zh": BATCH, "en": in_english()}
    return {"languages": {lang: tour_of(batch, EXAMPLE) for lang, batch in batches.items()}}


def run_tour(run: RunData, step: int, position: int) -> dict[str, Any]:
    """The tour of a recorded answer, beside others of its step."""
    run.sample(step, position)  # says so if there is no such sample
    rows = run.index(step)
    chosen = rows[position]
    same = [row["position"] for row in rows if row["prompt_key"] == chosen["prompt_key"]]
    others = [row["position"] for row in rows if row["right"] != chosen["right"]]
    wanted = dict.fromkeys([position, *same[:MOST_ANSWERS], *others[:1], *range(min(len(rows), 2))])
    batch = [run.sample(step, each) for each in wanted]
    return tour_of(batch, 0, right=run.correct_score)


class Told:
    """An answer, the one it is compared with, and the facts about both."""

    def __init__(self, batch: Sequence[Sample], position: int) -> None:
        if not any(batch[position].mask):
            raise TelescopeError("this answer has no token that the policy wrote: choose another")
        position = sum(any(before.mask) for before in batch[:position])
        batch = [_finite(sample) for sample in batch if any(sample.mask)]
        sample = batch[position]
        self.main = Answer(sample)
        self.has_critic = sample.settings.estimator_definition.needs.critic
        partner = partner_of(batch, position)
        self.answers = [self.main]
        if partner is not None:
            self.answers.append(Answer(batch[partner]))
        same = [other for i, other in enumerate(batch) if i != position and _same(other, sample)]
        self.group = [self.main, *map(Answer, same)]
        self.facts: Facts = answer_facts(self.main)
        self.facts |= compared_facts(self.answers, sample.count)
        self.facts |= update_facts(self.answers)
        if not self.has_critic:
            self.facts |= group_facts(self.main, self.group)

    def texts(self) -> list[StepTexts]:
        order = WITH_CRITIC if self.has_critic else WITHOUT_CRITIC
        found = [steps()[name] for name in order]
        return [step for step in found if set(step.needs) <= self.facts.keys()]

    def steps(self) -> list[dict[str, Any]]:
        return [self._step(step) for step in self.texts()]

    def _step(self, step: StepTexts) -> dict[str, Any]:
        ask = chosen(step.ask, self.facts)
        reveal = chosen(step.reveal, self.facts)
        return {
            "id": step.id,
            "title": step.titles,
            "symbol": step.symbols,
            "ask": {skin: paragraph(ask, skin, self.facts) for skin in SKINS},
            "reveal": {skin: paragraph(reveal, skin, self.facts) for skin in SKINS},
            "guess": GUESSES[step.id](self.main, self.facts),
            **self._marked(step.id),
        }

    def _marked(self, name: str) -> dict[str, Any]:
        """The answer and the tokens that a step speaks of."""
        names = {"d": ("p_i",), "lam": ("s_i", "a_i"), "A": ("a_i",), "R": ("a_i",)}
        names |= {"W": ("w_i",), "rho": ("u_i",), "gA": ("g_i",)}
        who = {"W": "w_who", "rho": "u_who"}.get(name)
        tokens = [self.facts[key] for key in names.get(name, ()) if key in self.facts]
        return {"who": self.facts.get(who, 0) if who else 0, "tokens": tokens}

    def group_dots(self) -> dict[str, Any] | None:
        """Outcomes of the answers to the same prompt, this answer's first."""
        if self.has_critic or "o" not in self.facts:
            return None
        outcomes = [number_of(x.outcome) for x in self.group if x.has("r")]
        numbers = {name: number_of(self.facts.get(name)) for name in ("b", "scale")}
        return {"outcomes": outcomes, **numbers}


# ---- which answers ----


def _finite(sample: Sample) -> Sample:
    """The sample without columns and updates that hold NaN or infinity: nobody can guess those."""

    def is_finite(numbers: Sequence[float]) -> bool:
        return all(map(math.isfinite, numbers))

    columns = {name: column for name, column in sample.columns.items() if is_finite(column)}
    updates = [update for update in sample.actor_updates if is_finite(update.ratio)]
    score = sample.score if sample.score is None or math.isfinite(sample.score) else None
    return replace(sample, columns=columns, actor_updates=updates, score=score)


def _same(x: Sample, y: Sample) -> bool:
    return (x.prompt, x.prompt_index) == (y.prompt, y.prompt_index)


def partner_of(batch: Sequence[Sample], position: int) -> int | None:
    """The answer to compare with: to the same prompt and with another score, if there is one."""
    sample = batch[position]
    others = [i for i in range(len(batch)) if i != position]
    if not others:
        return None

    def fits(i: int) -> tuple[bool, bool, int]:
        return _same(batch[i], sample), batch[i].score != sample.score, -i

    return max(others, key=fits)


# ---- the picture ----


def question_of(x: Answer) -> str:
    return shorten_text(user_turn(x.sample.prompt), MOST_TEXT)


def picture_of(x: Answer, right: float) -> dict[str, Any]:
    """The tokens of an answer that are drawn, with their numbers."""
    shown = x.shown()
    anchor = x.anchor()
    settings = x.sample.settings
    decay = settings.gamma * settings.lam(len(x))
    cells = []
    for place, k in enumerate(shown):
        following = shown[place + 1] if place + 1 < len(shown) else len(x)
        cell: dict[str, Any] = {
            "i": x.at[k],
            "text": x.texts[k],
            "folded": following - k - 1,
            "tool": k + 1 < len(x) and x.at[k + 1] != x.at[k] + 1,
            **{name: number_of(column[k]) for name, column in x.columns.items()},
        }
        if x.has("V"):
            cell["after"] = number_of(x.after(k))
            cell["weight"] = number_of(decay ** (k - anchor)) if k >= anchor else None
        update = x.update
        if update is not None:
            cell["rho"] = number_of(update.ratio[x.at[k]])
            flags = (update.clipped, update.dual_clipped)
            cell["clipped"] = any(each and each[x.at[k]] for each in flags)
        cells.append(cell)
    score = x.sample.score
    return {
        "cells": cells,
        "skipped": shown[0],
        "length": len(x),
        "anchor": x.at[anchor],
        "prompt": question_of(x),
        "response": shorten_text(x.sample.response, MOST_ANSWER),
        "score": number_of(score),
        "right": None if score is None else score >= right,
        "truncated": x.sample.truncated,
        "end": number_of(x.sample.bootstrap),
        "limits": _limits(x),
    }


def _limits(x: Answer) -> list[float] | None:
    """Between which ρ is not clipped; None for a loss without such limits."""
    actor = x.sample.settings.actor
    low = getattr(actor, "clip_low", None)
    high = getattr(actor, "clip_high", None)
    return None if low is None or high is None else [1 - low, 1 + high]
