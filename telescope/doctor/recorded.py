"""The ledger of a run as checks read it: a few steps, each as flat arrays."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from telescope.doctor.curves import Bools, Floats, NoSign
from telescope.doctor.finding import Place
from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from telescope.ledger import reader as ledger
from telescope.ledger.schema import METADATA

SHOWN = 3
"""Responses or tokens that show a finding, at most."""
_SHOWN_CHARACTERS = 60

State = tuple[str, tuple[int, ...]]
"""A prompt, and the tokens of a response up to and including one."""


class RecordedStep:
    """The responses of one step. A flat column holds their tokens one after the other."""

    def __init__(self, step: int, table: pa.Table) -> None:
        self.step = step
        self.table = table
        self.meta: dict[str, Any] = json.loads(table.schema.metadata[METADATA])
        lengths = [len(row or ()) for row in self.rows("response_mask")]
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
        self.mask: Bools = _flat(table, "response_mask") > 0
        self.row_of = np.repeat(np.arange(len(lengths)), lengths)
        """Which response each token belongs to."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @functools.cached_property
    def settings(self) -> Settings:
        return ledger.settings_of(self.table)

    def rows(self, name: str) -> list[Any]:
        """A column with one entry per response; empty if it was not recorded."""
        if name not in self.table.column_names:
            return []
        found: list[Any] = self.table.column(name).to_pylist()
        return found

    def known_rows(self, name: str) -> list[Any]:
        """The same, empty if some entries are missing."""
        found = self.rows(name)
        return [] if any(value is None for value in found) else found

    def flat(self, name: str) -> Floats | None:
        """A per-token column; None if it was not recorded for every token."""
        if name not in self.table.column_names:
            return None
        values = _flat(self.table, name)
        return values if len(values) == len(self.mask) else None

    def need(self, name: str) -> Floats:
        """The same; without it the check ends."""
        values = self.flat(name)
        if values is None:
            raise NoSign
        return values

    def tokens_of(self, name: str) -> list[Floats]:
        """A per-token column, one array per response; empty if it was not recorded."""
        flat = self.flat(name)
        if flat is None:
            return []
        return [flat[start:end] for start, end in self.spans()]

    def spans(self) -> Iterator[tuple[int, int]]:
        """First and last place of each response in a flat column."""
        return zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)

    def states(self, most: int) -> Iterator[tuple[State, int]]:
        """The first states of each response, and their places in a flat column."""
        answers = zip(self.known_rows("prompt"), self.rows("responses"), self.spans(), strict=True)
        for prompt, ids, (start, end) in answers:
            for at in range(start, min(end, start + most)):
                yield (prompt, tuple(ids[: at - start + 1])), at

    @functools.cached_property
    def groups(self) -> dict[Any, list[int]]:
        """Group, or prompt -> its responses."""
        names = self.known_rows("group") or self.known_rows("prompt")
        found: dict[Any, list[int]] = {}
        for row, name in enumerate(names):
            found.setdefault(name, []).append(row)
        return found

    def updates(self, which: int, *names: str) -> dict[str, Floats] | None:
        """Terms of an update of each response, 0 the first and −1 the last, as flat columns."""
        found: dict[str, list[Floats]] = {name: [] for name in names}
        for updates, (start, end) in zip(self.rows("actor_updates"), self.spans(), strict=False):
            if not updates:
                return None
            for name in names:
                values = np.array(updates[which].get(name) or [], float)
                if len(values) != end - start:
                    return None
                found[name].append(values)
        if not found[names[0]]:
            return None
        return {name: np.concatenate(rows) for name, rows in found.items()}

    def first_minibatch(self) -> Bools | None:
        """Which responses were in the first optimizer step: there the policy is the old one."""
        updates = self.rows("actor_updates")
        if not updates or not all(updates):
            return None
        return np.array([each[0]["epoch"] == 0 and each[0]["minibatch"] == 0 for each in updates])

    def sample(self, row: int) -> Sample:
        return ledger.sample_of(self.table, row)

    def place(self, at: int, **numbers: float) -> Place:
        """The token at a place of the flat columns."""
        row = int(self.row_of[at])
        token = int(at - self.offsets[row])
        pieces = self.rows("token_bytes")
        piece = pieces[row][token] if pieces and pieces[row] else b""
        text = piece.decode("utf-8", "replace")
        return Place(self.step, row, token, text, {k: float(v) for k, v in numbers.items()})

    def response_place(self, row: int, **numbers: float) -> Place:
        """A whole response."""
        texts = self.rows("response")
        text = str(texts[row] or "")[:_SHOWN_CHARACTERS] if texts else ""
        return Place(self.step, row, None, text, {k: float(v) for k, v in numbers.items()})

    def response_places(self, rows: Iterable[int]) -> tuple[Place, ...]:
        """The first of some responses."""
        return tuple(self.response_place(row) for row in islice(rows, SHOWN))

    def largest(self, size: Floats, **columns: Floats) -> tuple[Place, ...]:
        """The valid tokens with the largest sizes above 0, with their numbers in some columns."""
        known = np.where(self.mask & np.isfinite(size), size, -np.inf)
        order = [int(at) for at in np.argsort(-known)[:SHOWN] if known[at] > 0]
        return tuple(
            self.place(at, **{name: column[at] for name, column in columns.items()}) for at in order
        )


class Recorded:
    """The recorded steps of a run that checks look at.

    They are number 0, 1, 3, 7, 15, … of the recorded steps, so that a growing run is looked at
    again only a few times, and the newest if `last`.
    """

    def __init__(self, run: Path, *, last: bool = True) -> None:
        self.run = run
        self.all_steps = ledger.steps(run)
        places = [2**k - 1 for k in range(32) if 2**k - 1 < len(self.all_steps)]
        chosen = {self.all_steps[place] for place in places}
        if last and self.all_steps:
            chosen |= {self.all_steps[-1], self.all_steps[len(self.all_steps) // 2]}
        self.chosen = sorted(chosen)
        self._read: dict[int, RecordedStep | None] = {}

    def step(self, step: int) -> RecordedStep | None:
        """A recorded step; None if its file is damaged or empty."""
        if step not in self._read:
            try:
                table = ledger.read(self.run, step)
                self._read[step] = RecordedStep(step, table) if table.num_rows else None
            except TelescopeError:
                self._read[step] = None
        return self._read[step]

    def steps(self) -> list[RecordedStep]:
        """The chosen steps, in order."""
        found = [self.step(step) for step in self.chosen]
        return [step for step in found if step is not None]

    def answers(self, most: int) -> Iterator[tuple[str, str, float, Place]]:
        """Prompt, response, score and place of the answers of at most so many recorded steps."""
        for step, row, answer in self._cells(most, "prompt", "response", "score"):
            prompt, response, score = answer
            if prompt and response is not None and score is not None:
                shown = response[:_SHOWN_CHARACTERS]
                yield prompt, response, score, Place(step, row, None, shown, {"score": score})

    def prompts(self, most: int) -> Iterator[tuple[int, int, str]]:
        """Step, row and prompt of the responses of at most so many recorded steps."""
        for step, row, (prompt,) in self._cells(most, "prompt"):
            if prompt:
                yield step, row, prompt

    def endings(self, since: int, most: int) -> Iterator[tuple[Bools, Floats]]:
        """Of at most so many recorded steps: which responses were cut off, and the scores."""
        cells = self._cells(most, "truncated", "score", since=since)
        for _, rows in groupby(cells, key=itemgetter(0)):
            known = [cell for _, _, cell in rows if None not in cell]
            yield np.array([cut for cut, _ in known], bool), np.array([s for _, s in known], float)

    def _cells(
        self, most: int, *names: str, since: int = 0
    ) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
        """Step, row and some columns of the responses of at most so many recorded steps."""
        steps = [step for step in self.all_steps if step >= since]
        stride = max(1, -(-len(steps) // most))
        for step in steps[::stride]:
            try:
                table = ledger.read(self.run, step, list(names))
            except TelescopeError:
                continue
            columns = [table[name].to_pylist() for name in names]
            for row, cells in enumerate(zip(*columns, strict=True)):
                yield step, row, cells

    def held_out_prompts(self) -> set[str]:
        """The prompts of the first recorded evaluation, without the further evaluation sets."""
        for step in ledger.steps(self.run, "completions"):
            try:
                table = ledger.read(self.run, step, ["set", "prompt"], "completions")
            except TelescopeError:
                continue
            rows = table.to_pylist()
            return {row["prompt"] for row in rows if row["prompt"] and not row["set"]}
        return set()

    def near(self, step: int) -> RecordedStep:
        """The recorded step at or after a step, or the last one; without it the check ends."""
        later = [each for each in self.all_steps if each >= step] or self.all_steps[-1:]
        found = self.step(later[0]) if later else None
        if found is None:
            raise NoSign
        return found


def _flat(table: pa.Table, name: str) -> Floats:
    lists = table.column(name).combine_chunks()
    return np.asarray(lists.flatten().to_numpy(zero_copy_only=False), float)
