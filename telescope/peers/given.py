"""A batch as another trainer gave it, padding included, and what may be wrong in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from telescope.peers.rows import TOKEN_COLUMNS, Array, WatchedStep, ragged, rounding_of


@dataclass(frozen=True)
class Fault:
    """What is wrong, where, and how it can be seen."""

    id: str
    row: int
    token: int
    en: str
    zh: str


@dataclass(frozen=True)
class Given:
    """A batch as it was given: rows of any width, padding included."""

    responses: Sequence[Array]
    mask: Sequence[Array]
    columns: Mapping[str, Sequence[Array]]
    prompts: Sequence[Any] | None = None
    scores: Sequence[float | None] | None = None
    bootstrap: Sequence[float] | None = None
    eos: int | None = None
    pad: int | None = None
    whole: bool = False
    """Float32 numbers of a ledger of ours, whose rows hold no padding."""
    rounding: float = 0.0
    """How far a number may be off by rounding, relative to itself, where one is half precision."""

    def token(self, row: int, slot: int) -> int:
        """The token's number in its answer; negative in padding on the left."""
        on = np.flatnonzero(self.mask[row])
        return int(slot - on[0]) if len(on) else int(slot)

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """(row number, mask, columns …) where all of these columns are there."""
        if all(name in self.columns for name in names):
            columns = [self.columns[name] for name in names]
            masks = [np.asarray(mask) > 0 for mask in self.mask]
            yield from zip(range(len(masks)), masks, *columns, strict=True)


def given_batch(
    watched: WatchedStep, given: Mapping[str, Any], eos: int | None, pad: int | None = None
) -> Given:
    """The arrays of `record` as they were given, with their padding.

    `watched` is the same batch without it, for what was not given.
    """
    mask = given.get("mask")
    columns = (*TOKEN_COLUMNS, "log_probs")
    whole = [name for name in columns if given.get(name) is not None]
    return Given(
        responses=ragged("responses", given["responses"], None),
        mask=[row > 0 for row in (watched.mask if mask is None else ragged("mask", mask, None))],
        columns={name: ragged(name, given[name], None) for name in whole},
        prompts=watched.prompts or watched.prompt_ids,
        scores=watched.scores,
        bootstrap=watched.bootstrap,
        eos=eos,
        pad=pad,
        rounding=max(rounding_of(given).values(), default=0.0),
    )
