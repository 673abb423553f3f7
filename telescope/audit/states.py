"""Which tokens of a ledger are audited, and the states that they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from telescope.explain.sample import Sample

PER_RESPONSE = 8
"""States of one response that are worth more than a further response."""


@dataclass(frozen=True)
class State:
    """A prompt and the first tokens of a response to it."""

    prompt_index: int
    prefix: tuple[int, ...]


@dataclass
class Chosen:
    """The audited tokens, and every state before or after one of them, each once."""

    tokens: list[tuple[int, int]] = field(default_factory=list)
    """(sample, token)"""
    states: dict[State, int] = field(default_factory=dict)
    """State -> its number. Responses that begin alike share states."""


def state_of(sample: Sample, token: int) -> State:
    """The state before a token."""
    return State(sample.prompt_index, tuple(sample.token_ids[:token]))


def choose(samples: Sequence[Sample], limit: int) -> Chosen:
    """Tokens of responses all over the step, until they need `limit` states.

    The advantage of a token is about the states before and after it, so a token brings both. Of
    each response come first: its first token, the one with the largest |δ|, its last one. Then
    come tokens between them.
    """
    written = [sample for sample in samples if len(sample)]
    most = [min(len(sample), PER_RESPONSE) for sample in written]
    count = min(len(written), -(-limit * len(written) // max(sum(most), 1)))
    rows = [written[len(written) * k // count] for k in range(count)]
    orders = [list(_order(sample)) for sample in rows]
    chosen = Chosen()
    for turn in range(max(map(len, orders), default=0)):
        for sample, order in zip(rows, orders, strict=True):
            if turn >= len(order):
                continue
            token = order[turn]
            needed = [state_of(sample, i) for i in (token, token + 1) if i < len(sample)]
            new = [state for state in needed if state not in chosen.states]
            if len(chosen.states) + len(new) > limit:
                return chosen
            for state in new:
                chosen.states[state] = len(chosen.states)
            chosen.tokens.append((sample.index, token))
    return chosen


def _order(sample: Sample) -> Iterator[int]:
    """Every token of a response, the most informative ones first."""
    last = len(sample) - 1
    seen: set[int] = set()
    deltas = sample.columns.get("deltas") or [0.0]
    largest = max(range(len(deltas)), key=lambda i: abs(deltas[i]))
    for token in (0, largest, last, *_halves(len(sample))):
        if token not in seen:
            seen.add(token)
            yield token


def _halves(count: int) -> Iterator[int]:
    """0 … count − 1 spread out: the middle, the quarters, the eighths, and so on."""
    parts = 2
    while parts < 2 * count:
        yield from (count * k // parts for k in range(1, parts, 2))
        parts *= 2
    yield from range(count)
