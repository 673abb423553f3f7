"""A step as a what-if reads it: the recorded columns of all its responses."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from telescope.algorithms.definitions.base import Actions
from telescope.ledger import reader as ledger
from telescope.viewer.columns import (
    flat_numbers,
    has_critic,
    last_update,
    lists_of,
    offsets_of,
    per_sample,
    token_columns,
)
from telescope.viewer.payload import number_of

Floats = npt.NDArray[np.float64]

INPUTS = ("token_level_rewards", "values", "old_log_probs", "sum_pi_squared", "attention")
"""Columns that advantages are made from, where they were recorded."""
OF_THE_UPDATE = ("log_probs", "old_log_probs", "ratio", "weight", "selected")
"""What a policy loss is made from. Ledgers of earlier versions have fewer."""


class RecordedStep:
    """The responses of one step. A flat column holds them one after the other.

    `part_weights` are those of the reward functions, from the run's config; `group_size` is the
    number of responses that the run samples for each prompt. Both may be unknown.
    """

    def __init__(
        self,
        table: pa.Table,
        *,
        part_weights: Mapping[str, float] | None = None,
        group_size: int | None = None,
    ) -> None:
        mask = lists_of(table, "response_mask")
        self.table = table
        self.settings = ledger.settings_of(table)
        self.offsets = offsets_of(mask)
        self.mask = flat_numbers(mask) > 0
        self.has_critic = has_critic(table)
        self.at = [
            np.flatnonzero(self.mask[start:end]) + start
            for start, end in itertools.pairwise(self.offsets)
        ]
        """Where the valid tokens of each response are."""
        self._part_weights = part_weights or {}
        self._group_size = group_size

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Floats | None:
        """A flat column; None if it was not recorded for every token."""
        found = token_columns(self.table, [name])
        return found[name].astype(np.float64) if found else None

    def of_rows(self, name: str) -> list[Any] | None:
        """A column with one entry per response; None if it was not recorded for all."""
        found = per_sample(self.table, name)
        return None if found is None or None in found else found

    def written(self, column: Floats) -> list[float]:
        """The column's numbers at valid tokens."""
        numbers: list[float] = column[self.mask].tolist()
        return numbers

    @functools.cached_property
    def inputs(self) -> dict[str, Floats]:
        """The columns that advantages are made from."""
        found = token_columns(self.table, INPUTS, critic=self.has_critic)
        return {name: column.astype(np.float64) for name, column in found.items()}

    def responses(self) -> list[Actions]:
        """Every response with its inputs only."""
        bootstrap = self.of_rows("bootstrap") or [0.0] * len(self)
        greedy = self.of_rows("greedy_score") or [0.0] * len(self)
        made = []
        for row, at in enumerate(self.at):
            start = self.offsets[row]
            actions = Actions(
                {name: column[at].tolist() for name, column in self.inputs.items()},
                at=(at - start).tolist(),
                bootstrap=bootstrap[row],
                greedy_score=greedy[row],
                parts=self.parts[row],
                weights=self.part_weights,
            )
            made.append(actions)
        return made

    def flat(self, rows: list[list[float]]) -> Floats:
        """One list per response, numbers of its valid tokens, as a flat column."""
        made = np.zeros(len(self.mask))
        made[self.mask] = np.fromiter(itertools.chain.from_iterable(rows), np.float64)
        return made

    @property
    def batch_moments(self) -> tuple[float | None, float | None]:
        """μ and σ of the whole batch; None where they were not recorded."""
        mean, std = (self.of_rows(name) or [None] for name in ("whiten_mean", "whiten_std"))
        return mean[0], std[0]

    def whitening(self) -> dict[str, Any]:
        """μ and σ of the whole batch, and how many valid tokens were recorded."""
        mean, std = self.batch_moments
        count = int(self.mask.sum())
        return {"mean": number_of(mean, 9), "std": number_of(std, 9), "count": count}

    # ---- groups ----

    @functools.cached_property
    def groups(self) -> dict[Any, list[int]]:
        """Group -> its responses. A ledger without the column groups by prompt."""
        names = self.of_rows("group") or self.of_rows("prompt") or []
        found: dict[Any, list[int]] = {}
        for row, name in enumerate(names):
            found.setdefault(name, []).append(row)
        return found

    @property
    def has_groups(self) -> bool:
        return any(len(rows) > 1 for rows in self.groups.values())

    @property
    def group_size(self) -> int:
        """Responses of a whole group."""
        return self._group_size or max(map(len, self.groups.values()), default=0)

    @property
    def incomplete_groups(self) -> list[list[int]]:
        """Groups of which some responses were not recorded."""
        whole = self.group_size
        return [rows for rows in self.groups.values() if len(rows) < whole]

    # ---- parts of the score ----

    @functools.cached_property
    def parts(self) -> list[dict[str, float]]:
        return [dict(row or ()) for row in self.of_rows("parts") or [()] * len(self)]

    @functools.cached_property
    def part_weights(self) -> dict[str, float]:
        """The weight of each part; empty where they do not add up to the recorded scores."""
        names = list(dict.fromkeys(name for parts in self.parts for name in parts))
        share = 1 / max(len(names), 1)
        for usual in (1.0, share):
            weights = {name: self._part_weights.get(name, usual) for name in names}
            if self._add_up(weights):
                return weights
        return {}

    def _add_up(self, weights: Mapping[str, float]) -> bool:
        """Whether every recorded score is the sum of its weighed parts: those that apply to it."""
        scores = self.of_rows("score")
        if scores is None or any(not parts for parts in self.parts):
            return False
        for parts, score in zip(self.parts, scores, strict=True):
            total = math.fsum(weights[name] * part for name, part in parts.items())
            if not math.isclose(total, score, rel_tol=1e-5, abs_tol=1e-6):
                return False
        return True

    # ---- the last update ----

    @functools.cached_property
    def update(self) -> dict[str, list[Any]] | None:
        """Terms of each response's last update; None unless every response took part in one."""
        if "actor_updates" not in self.table.column_names:
            return None
        fields = self.table.schema.field("actor_updates").type.value_type
        names = [field.name for field in fields if field.name in OF_THE_UPDATE]
        found = last_update(self.table, *names)
        lengths = [end - start for start, end in itertools.pairwise(self.offsets)]
        if found is None or [len(row) for row in found["log_probs"]] != lengths:
            return None
        none = [np.zeros(0, np.float32)] * len(self)
        return {name: found.get(name, none) for name in OF_THE_UPDATE}
