"""Writes what a step computed: the batch's columns and the terms of the losses.

Nothing is computed a second time, so the record cannot differ from what was trained on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from telescope.algorithms import entropy_weight
from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.ledger.reader import path_of
from telescope.ledger.schema import ACTOR_UPDATE, CRITIC_UPDATE, PER_ROW, PER_TOKEN, VERSION
from telescope.ledger.table import Array, TokenBytes, arrow_table, list_column, offsets, save_table

Note = Callable[[TokenBatch, Mapping[str, Tensor]], None]
"""Called by a loss with the rows of a micro-batch and its per-token terms."""

Noted = tuple[int, int, list[int], dict[str, Tensor]]
"""Epoch, minibatch, numbers of the samples, and their terms (one row per sample)."""

_OF_A_TRAINING_BATCH = ("whitened", "whiten_mean", "whiten_std")
_SHORT = (str, int, float, bool)
_MAX_VALUE = 300  # characters of a value of the data


def ignore(rows: TokenBatch, terms: Mapping[str, Tensor]) -> None:
    """The `Note` of a step that is not recorded."""


class Notes:
    """Buffers the per-token loss terms of the first `limit` responses of a step.

    Each rank fills one, and the process that writes the ledger adds them to its own.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._notes: dict[str, list[Noted]] = {"actor": [], "critic": []}

    def note(self, role: str, epoch: int, minibatch: int) -> Note:
        """Returns the callback to which a role's loss passes its terms during one minibatch."""

        def keep(rows: TokenBatch, terms: Mapping[str, Tensor]) -> None:
            if not self.limit:
                return
            samples = rows.host("sample")
            chosen = [place for place, sample in enumerate(samples) if sample < self.limit]
            if not chosen:
                return
            index = torch.tensor(chosen).to(rows.mask.device, non_blocking=True)
            # Indexing copies: later changes of the terms do not reach the note.
            copies = {name: value.detach()[index] for name, value in terms.items()}
            numbers = [samples[place] for place in chosen]
            self._notes[role].append((epoch, minibatch, numbers, copies))

        return keep

    def take(self) -> dict[str, list[Noted]]:
        """Returns what was noted since the last call, and forgets it."""
        notes = self._notes
        self._notes = {"actor": [], "critic": []}
        return notes

    def add(self, notes: Mapping[str, list[Noted]]) -> None:
        """Adds what another process has noted."""
        for role, more in notes.items():
            self._notes[role] += more


class Ledger(Notes):
    """Collects one step and writes it as one file, which appears whole or not at all."""

    def __init__(self, config: Config, tokenizer: Any) -> None:
        super().__init__(_samples_per_step(config))
        self.config = config
        self.tokenizer = tokenizer
        self._bytes = TokenBytes(tokenizer)
        self._writer = ThreadPoolExecutor(1, "ledger")
        self._writing: Future[Any] | None = None
        self._urgent = threading.Event()

    def write(
        self, step: int, batch: TokenBatch, *, kl_coef: float, beta: float | None = None
    ) -> None:
        """Writes the first `ledger.samples` responses of the batch and what was noted about them.

        Returns at once: the file is written in the background, during the next step. `kl_coef` and
        `beta` are the coefficients of this step; adaptive ones differ from the config's.
        """
        self.wait()
        notes = self.take()
        if self.is_due(step):
            self._urgent.clear()
            self._writing = self._writer.submit(self._write, step, batch, notes, kl_coef, beta)

    def is_due(self, step: int) -> bool:
        """Whether `write` records this step."""
        return self.limit > 0 and step % self.config.ledger.every == 0

    def wait(self) -> None:
        """Waits until the last `write` is on disk, and raises its error if it failed."""
        writing = self._writing
        self._writing = None
        self._urgent.set()
        if writing is not None:
            writing.result()

    def write_evaluation(self, step: int, batch: TokenBatch, *, kl_coef: float) -> None:
        """Writes answers of an evaluation after `step`, which no update has seen, as `eval_…`.

        Whitening is over a whole training batch, so they have none.
        """
        nothing: dict[str, list[Noted]] = {"actor": [], "critic": []}
        columns = self._columns(batch, nothing, len(batch))
        own = {name: columns[name] for name in columns if name not in _OF_A_TRAINING_BATCH}
        table = arrow_table(own, self._meta(step, kl_coef, None))
        save_table(table, path_of(self.config.run_dir, step, "eval"))

    def _write(
        self,
        step: int,
        batch: TokenBatch,
        notes: dict[str, list[Noted]],
        kl_coef: float,
        beta: float | None,
    ) -> None:
        # After 50 ms the next rollout keeps a GPU busy and leaves Python time for this.
        self._urgent.wait(0.05)
        table = self._table(step, batch, notes, kl_coef, beta)
        save_table(table, path_of(self.config.run_dir, step))

    def table(self, step: int, batch: TokenBatch, *, kl_coef: float) -> pa.Table:
        """The table that `write` would write; clears what was noted."""
        return self._table(step, batch, self.take(), kl_coef)

    def _table(
        self,
        step: int,
        batch: TokenBatch,
        notes: dict[str, list[Noted]],
        kl_coef: float,
        beta: float | None = None,
    ) -> pa.Table:
        columns = self._columns(batch, notes, min(self.limit, len(batch)))
        meta = self._meta(step, kl_coef, beta)
        actor = self.config.actor
        if actor.entropy_target is not None:
            meta["settings"]["actor"]["entropy_coef"] = entropy_weight(
                batch["old_log_probs"],
                batch.mask,
                coef=actor.entropy_coef,
                target=actor.entropy_target,
            )
        return arrow_table(columns, meta)

    def _meta(self, step: int, kl_coef: float, beta: float | None) -> dict[str, Any]:
        return {
            "version": VERSION,
            "run": self.config.name,
            "step": step,
            "settings": self._settings(kl_coef, beta),
            "tokens": self._special_tokens(),
        }

    def _special_tokens(self) -> dict[str, int]:
        """The ids that end a response and stand for what the tokenizer does not know."""
        ids = {name: getattr(self.tokenizer, f"{name}_token_id", None) for name in ("eos", "unk")}
        return {name: token for name, token in ids.items() if isinstance(token, int)}

    def _columns(
        self, batch: TokenBatch, notes: dict[str, list[Noted]], count: int
    ) -> dict[str, Any]:
        """The columns of the first `count` responses."""
        prompt_width = batch["prompts"].shape[1]
        exists = batch["attention_mask"][:count, prompt_width:].bool().cpu().numpy()  # [N, T]
        lengths = exists.sum(1)
        columns = self._of_rows(batch, count)
        for name, kind in PER_TOKEN.items():
            if name in batch:
                flat = batch[name][:count].cpu().numpy()[exists]
                columns[name] = list_column(flat, lengths, kind)
        entropy = _first_noted(notes["actor"], "entropy", lengths, exists.shape)
        if entropy is not None:
            written = batch.mask[:count].cpu().numpy()
            flat = np.where(written, entropy, 0.0)[exists]
            columns["entropy"] = list_column(flat, lengths, PER_TOKEN["entropy"])
        columns["actor_updates"] = _updates(notes["actor"], ACTOR_UPDATE, lengths)
        columns["critic_updates"] = _updates(notes["critic"], CRITIC_UPDATE, lengths)
        return columns

    def _of_rows(self, batch: TokenBatch, count: int) -> dict[str, Any]:
        """The columns of whole responses: their ids, texts and scores."""
        info = batch.info[:count]
        scores = batch.scores[:count]
        columns: dict[str, Any] = {}
        for name in PER_ROW:
            if name in batch:
                columns[name] = batch[name][:count].cpu().numpy()
        columns |= {
            "prompt": [row.prompt for row in info],
            "prompt_index": [row.prompt_index for row in info],
            "prompt_ids": batch.prompt_ids()[:count],
            "response": [row.response.text for row in info],
            "score": [score.total for score in scores],
            "parts": [list(score.parts.items()) for score in scores],
            "data": [_short_values(row.data) for row in info],
            "token_bytes": [[self._bytes[i] for i in row.response.ids] for row in info],
        }
        return columns

    def _settings(self, kl_coef: float, beta: float | None) -> dict[str, Any]:
        """The settings that went into the numbers, with `kl_coef` and `beta` of this step."""
        config = self.config
        credit = config.credit.model_dump() | {"kl_coef": kl_coef, "whiten": config.credit.whitens}
        actor = config.actor.model_dump()
        if beta is not None and "beta" in actor:
            actor["beta"] = beta
        return {
            "credit": credit,
            "actor": actor,
            "critic": config.critic.model_dump(),
            "temperature": config.rollout.temperature,
        }


def _short_values(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The columns of a row of the data that a reader can take in: the right answer, a level."""
    values = [(name, value) for name, value in data.items() if isinstance(value, _SHORT)]
    return [(name, _as_text(value)[:_MAX_VALUE]) for name, value in values]


def _as_text(value: str | float) -> str:
    """Half a surrogate pair, which JSON may hold, has no place in a file of UTF-8."""
    return str(value).encode("utf-8", "replace").decode()


def _samples_per_step(config: Config) -> int:
    """How many responses of a step are recorded."""
    wanted = config.ledger.samples
    if wanted == "off":
        return 0
    if wanted == "all":
        return config.rollout.batch_size * config.rollout.n
    return wanted


def _first_noted(
    notes: Sequence[Noted], name: str, lengths: Array, shape: tuple[int, ...]
) -> Array | None:
    """A term [N, T] as the first update of each row noted it; NaN for a row without one.

    None if no update noted it.
    """
    found = np.full(shape, np.nan, np.float32)
    has_term = False
    # The last first, so that the first one stays; notes of several processes come in any order.
    for _, _, rows, terms in sorted(notes, key=lambda noted: noted[:2], reverse=True):
        if name in terms:
            has_term = True
            values = terms[name].float().cpu().numpy()
            for place, row in enumerate(rows):
                found[row, : lengths[row]] = values[place, : lengths[row]]
    return found if has_term else None


def _updates(
    notes: Sequence[Noted], kinds: Mapping[str, pa.DataType], lengths: Array
) -> pa.ListArray:
    """For each row the updates it took part in, in time order."""
    noted = [name for name in kinds if all(name in terms for *_, terms in notes)]
    of_row: list[list[dict[str, Any]]] = [[] for _ in lengths]
    # Notes of several processes come in any order.
    for epoch, minibatch, rows, terms in sorted(notes, key=lambda noted: noted[:2]):
        arrays = {name: terms[name].cpu().numpy() for name in noted}
        for place, row in enumerate(rows):
            own = {name: array[place, : lengths[row]] for name, array in arrays.items()}
            of_row[row].append({"epoch": epoch, "minibatch": minibatch, **own})
    every = [update for updates in of_row for update in updates]
    counts = [len(updates) for updates in of_row]
    tokens = np.repeat(lengths, counts)
    columns = {
        name: pa.array([update[name] for update in every], pa.int16())
        for name in ("epoch", "minibatch")
    }
    for name in noted:
        flat = np.concatenate([update[name] for update in every]) if every else np.zeros(0)
        columns[name] = list_column(flat, tokens, kinds[name].value_type)
    structs = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    return pa.ListArray.from_arrays(offsets(counts), structs)
