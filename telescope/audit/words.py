"""An audit in sentences and tables, in Chinese and English (words.toml).

Every sentence states numbers of the summary; none judges what the numbers do not say.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telescope.audit.findings import Audit, Errors, Post, Signs, Summary, summarise
from telescope.explain.text import both_ends, fold, pad, visible
from telescope.explain.words import Lang

WIDTH = 80
PROMPTS = 5
"""Prompts that the table lists."""
_LABEL = 34
"""Cells of a table's first column."""
_CELL = 9
_CREDITS = {"advantages": "A", "whitened": "Â", "deltas": "δ"}


@functools.cache
def _texts() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))


def report(audit: Audit, lang: Lang, width: int = WIDTH) -> str:
    """The whole audit for a terminal."""
    return "\n\n".join(
        "\n".join(fold(line, width) for line in lines)
        for lines in _Words(audit, lang).blocks()
        if lines
    )


def number(x: float, *, sign: bool = False) -> str:
    """A number with two decimals, without a minus before 0.00."""
    text = f"{abs(x):.2f}"
    if text == "0.00":
        return text
    return ("−" if x < 0 else "+" if sign else "") + text


class _Words:
    """The sentences of one audit in one language."""

    def __init__(self, audit: Audit, lang: Lang) -> None:
        self.audit = audit
        self.lang = lang
        name = _texts()["name"][audit.estimate or "values"][lang]
        self.names = {
            "name": name,
            "Name": name[:1].upper() + name[1:],
            "short": name.removeprefix("the "),
        }

    def say(self, key: str, *values: Any, **named: Any) -> str:
        return _texts()["said"][key][self.lang].format(*values, **self.names, **named)

    def blocks(self) -> list[list[str]]:
        """What the terminal shows, block by block."""
        audit = self.audit
        summary = summarise(audit)
        title = self.say(f"title {audit.estimate}", run=audit.run, step=audit.step)
        blocks = [[title], self.method()]
        if summary.overall is not None:
            blocks.append(self.verdict(summary, summary.overall))
            blocks += self.tables(summary)
        elif audit.estimate is None:
            blocks.append([self.say("nothing predicted")])
        return [*blocks, self.signs(summary.signs), [self.speed()]]

    # ---- what was done ----

    def method(self) -> list[str]:
        audit = self.audit
        lines = [
            self.say(
                "policy" if audit.checkpoint == audit.needed else "other policy",
                step=audit.step,
                weights=self.weights(audit.checkpoint),
                needed=self.weights(audit.needed),
            ),
            self.say("method", states=audit.states, continuations=audit.continuations),
        ]
        if audit.estimate is not None:
            lines.append(self.say("outcome", sum=_return(audit)))
        return lines

    def weights(self, number: int) -> str:
        return self.say("checkpoint", number) if number else self.say("first model")

    def speed(self) -> str:
        audit = self.audit
        rate = audit.states / max(audit.seconds, 1e-9)
        return self.say("speed", seconds=audit.seconds, rate=rate, device=audit.device)

    # ---- what came out ----

    def verdict(self, summary: Summary, overall: Errors) -> list[str]:
        typical = number(overall.typical_error)
        lines = [
            self.bias(overall),
            self.say("typical", typical=typical, outside=summary.outside, count=overall.count),
        ]
        if summary.slope is None or summary.intercept is None:
            return [*lines, self.say("constant")]
        fit = f"{number(summary.intercept)} + {number(summary.slope)}·{self.names['short']}"
        lines.append(self.say("line", fit=fit.replace("+ −", "− ")))
        if summary.rank_correlation is not None:
            rank = self.say("rank", rank=number(summary.rank_correlation))
            if summary.explained is not None:
                rank += self.say("explained", number(summary.explained))
            lines.append(rank)
        return lines

    def bias(self, overall: Errors) -> str:
        off = number(abs(overall.mean_error))
        key = "too high" if overall.mean_error > 0 else "too low"
        return self.say(
            "no bias" if off == "0.00" else key,
            predicted=number(overall.predicted),
            outcome=number(overall.outcome),
            off=off,
        )

    def tables(self, summary: Summary) -> list[list[str]]:
        """Errors by prediction, by position and by prompt."""
        bins = [(str(place), errors) for place, errors in enumerate(summary.bins, 1)]
        names = _texts()["place"]
        places = [(names[place][self.lang], errors) for place, errors in summary.places.items()]
        prompts = []
        for prompt, errors in summary.prompts[:PROMPTS]:
            text = visible(self.audit.prompts.get(prompt, str(prompt)), spaces=False)
            prompts.append((both_ends(text, _LABEL - 3), errors))
        return [
            self.table(self.say("calibration"), bins),
            self.table(self.say("by position"), places),
            self.table(self.say("by prompt", len(summary.prompts)), prompts),
        ]

    def table(self, title: str, rows: Sequence[tuple[str, Errors]]) -> list[str]:
        lines = [_row(title, self.say("heads").split())]
        for label, errors in rows:
            cells = [
                str(errors.count),
                number(errors.predicted),
                number(errors.outcome),
                number(errors.mean_error, sign=True),
                number(errors.typical_error),
            ]
            lines.append(_row(f"  {label}", cells))
        return lines

    def signs(self, found: Signs) -> list[str]:
        """How many tokens have credit of the wrong sign."""
        lines = [self.say("decided", tokens=found.tokens, decided=found.decided)]
        if not found.decided:
            return lines
        parts = []
        for name, wrong in found.wrong.items():
            share = f"{100 * wrong / found.decided:.0f} %"
            parts.append(f"{_CREDITS[name]} {wrong} ({share})")
        lines.append(self.say("wrong", self.say("comma").join(parts)))
        for name, zero in found.zero.items():
            if zero:
                lines.append(self.say("zero", symbol=_CREDITS[name], count=zero))
        return lines


def _return(audit: Audit) -> str:
    """What a return is made of, e.g. Σ γᵏ·(score − 0.05·KL) with γ = 0.99."""
    gamma = audit.settings["gamma"]
    beta = audit.settings["kl_coef"]
    reward = f"score − {beta:g}·KL" if beta else "score"
    if gamma == 1:
        return f"Σ ({reward})" if beta else "Σ score"
    return f"Σ {gamma:g}ᵏ·({reward})"


def _row(label: str, cells: Sequence[str]) -> str:
    return pad(label, _LABEL) + "".join(pad(cell, _CELL, ">") for cell in cells)


# ---- one token ----


def token_line(audit: Audit, sample: int, token: int, lang: Lang, *, kid: bool = False) -> str:
    """What the audit says about the state before a token; empty if it was not audited."""
    posts = (post for post in audit.posts if (post.sample, post.token) == (sample, token))
    post = next(posts, None)
    if post is None:
        return ""
    words = _Words(audit, lang)
    return (_kid_line(words, post) if kid else _expert_line(words, post)) + words.say("end")


def _expert_line(words: _Words, post: Post) -> str:
    audit = words.audit
    low = number(post.low)
    high = number(post.high)
    line = words.say("token", count=audit.continuations, mean=number(post.mean), low=low, high=high)
    if audit.checkpoint != audit.needed:
        line += words.say("token by another")
    if post.predicted is not None:
        line += words.say(f"token {audit.estimate or 'values'}", number(post.predicted))
    return line


def _kid_line(words: _Words, post: Post) -> str:
    audit = words.audit
    line = words.say("kid token", count=audit.continuations, mean=points(post.mean))
    if post.predicted is not None and audit.estimate == "values":
        line += words.say("kid token values", points(post.predicted))
    return line


def points(x: float) -> str:
    """A score for a child: 1 is 100 points, as in the tour."""
    text = f"{abs(100 * x):.0f}"
    return text if text == "0" or x > 0 else f"−{text}"
