"""Writes what the step computed: the batch's own columns and the losses' own terms, nothing derived a second time."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from torch import Tensor

from telescope.batch import TokenBatch
from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.ledger.reader import path_of
from telescope.ledger.schema import METADATA, PER_ROW, PER_TOKEN, SCHEMA, UPDATES, VERSION

Note = Callable[[TokenBatch, Mapping[str, Tensor]], None]
"""Called by a loss with the rows of a micro-batch and its per-token terms."""

Noted = tuple[int, int, list[int], dict[str, Tensor]]
"""Epoch, minibatch, samples and their terms."""


def ignore(rows: TokenBatch, terms: Mapping[str, Tensor]) -> None:
    """The note of a step that is not recorded."""


class Notes:
    """What the losses of a step report about its first `limit` samples. Travels from the processes that compute to the one that writes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._notes: dict[str, list[Noted]] = {"actor": [], "critic": []}

    def note(self, role: str, epoch: int, minibatch: int) -> Note:
        """What a role's loss reports its terms to during one minibatch."""

        def keep(rows: TokenBatch, terms: Mapping[str, Tensor]) -> None:
            if not self.limit:
                return
            samples = rows.host("sample")
            chosen = [place for place, sample in enumerate(samples) if sample < self.limit]
            if chosen:  # indexing copies: what is noted cannot change any more
                index = torch.tensor(chosen).to(rows.mask.device, non_blocking=True)
                copies = {name: value.detach()[index] for name, value in terms.items()}
                self._notes[role].append(
                    (epoch, minibatch, [samples[place] for place in chosen], copies)
                )

        return keep

    def take(self) -> dict[str, list[Noted]]:
        """What was noted since the last call."""
        notes, self._notes = self._notes, {"actor": [], "critic": []}
        return notes

    def add(self, notes: Mapping[str, list[Noted]]) -> None:
        """What another process has noted."""
        for role, more in notes.items():
            self._notes[role] += more


class Ledger(Notes):
    """Collects one step and writes it as one file, which appears whole or not at all."""

    def __init__(self, config: Config, tokenizer: Any) -> None:
        wanted, everything = config.ledger.samples, config.rollout.batch_size * config.rollout.n
        super().__init__(everything if wanted == "all" else 0 if wanted == "off" else wanted)
        self.config, self.tokenizer = config, tokenizer
        self._bytes = TokenBytes(tokenizer)
        self._writer = ThreadPoolExecutor(1, "ledger")
        self._writing: Future[Any] | None = None
        self._urgent = threading.Event()

    def write(
        self, step: int, batch: TokenBatch, *, kl_coef: float, beta: float | None = None
    ) -> None:
        """Writes the first `ledger.samples` responses of the batch as `step`, while the next step goes on; clears what was noted.

        `kl_coef` and `beta` are those of the step, where they move.
        """
        self.wait()
        notes = self.take()
        if self.limit and step % self.config.ledger.every == 0:
            self._urgent.clear()
            self._writing = self._writer.submit(self._write, step, batch, notes, kl_coef, beta)

    def wait(self) -> None:
        """Until what was handed to `write` is on disk; raises what went wrong there."""
        writing, self._writing = self._writing, None
        self._urgent.set()
        if writing is not None:
            writing.result()

    def _write(
        self,
        step: int,
        batch: TokenBatch,
        notes: dict[str, list[Noted]],
        kl_coef: float,
        beta: float | None,
    ) -> None:
        self._urgent.wait(
            0.05
        )  # by then the next rollout keeps a GPU busy, and Python has little else to do
        self._save(
            self._table(step, batch, notes, kl_coef, beta), path_of(self.config.run_dir, step)
        )

    def table(self, step: int, batch: TokenBatch, *, kl_coef: float) -> pa.Table:
        """What `write` writes."""
        return self._table(step, batch, self.take(), kl_coef)

    def _table(
        self,
        step: int,
        batch: TokenBatch,
        notes: dict[str, list[Noted]],
        kl_coef: float,
        beta: float | None = None,
    ) -> pa.Table:
        count = min(self.limit, len(batch))
        exists = (
            batch["attention_mask"][:count, batch["prompts"].shape[1] :].bool().cpu().numpy()
        )  # [N, T]
        lengths = exists.sum(1)
        info = batch.info[:count]
        scores = batch.scores[:count]
        columns: dict[str, Any] = {
            name: batch[name][:count].cpu().numpy() for name in PER_ROW if name in batch
        }
        columns |= {
            "prompt": [row.prompt for row in info],
            "prompt_index": [row.prompt_index for row in info],
            "prompt_ids": batch.prompt_ids()[:count],
            "response": [row.response.text for row in info],
            "score": [score.total for score in scores],
            "parts": [list(score.parts.items()) for score in scores],
            "token_bytes": [[self._bytes[i] for i in row.response.ids] for row in info],
        }
        columns |= {
            name: _lists(batch[name][:count].cpu().numpy()[exists], lengths, kind)
            for name, kind in PER_TOKEN.items()
            if name in batch
        }
        for (name, fields), role in zip(UPDATES.items(), ("actor", "critic"), strict=True):
            columns[name] = _updates(notes[role], fields, lengths)
        there = [
            f for f in SCHEMA if f.name in columns
        ]  # some columns only some estimators have, some terms only some losses
        arrays = [
            columns[f.name]
            if isinstance(columns[f.name], pa.Array)
            else pa.array(columns[f.name], f.type)
            for f in there
        ]
        schema = pa.schema([(f.name, array.type) for f, array in zip(there, arrays, strict=True)])
        meta = {
            "version": VERSION,
            "run": self.config.name,
            "step": step,
            "settings": self._settings(kl_coef, beta),
        }
        return pa.Table.from_arrays(
            arrays, schema=schema.with_metadata({METADATA: json.dumps(meta).encode()})
        )

    def _save(self, table: pa.Table, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            parquet.write_table(table, temporary, compression="zstd")
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TelescopeError(
                f"cannot write {path}: {error.strerror or error}; free some space, then continue with --resume"
            ) from error

    def _settings(self, kl_coef: float, beta: float | None) -> dict[str, Any]:
        """The resolved settings that went into the numbers; `kl_coef` and `beta` of this step."""
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


class TokenBytes(dict[int, bytes]):
    """The bytes a token stands for, by id; one character may be split over several tokens."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer, self.special = tokenizer, set(tokenizer.all_special_ids)
        byte_level = "ByteLevel" in str(
            getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", "")
        )
        self.alphabet = _byte_level() if byte_level else {}

    def __missing__(self, token: int) -> bytes:
        self[token] = found = self._of(token, self.tokenizer.convert_ids_to_tokens(token) or "")
        return found

    def _of(self, token: int, text: str) -> bytes:
        if token in self.special:
            return text.encode()
        byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
        if byte:
            return bytes([int(byte[1], 16)])
        if self.alphabet and all(char in self.alphabet for char in text):
            return bytes(self.alphabet[char] for char in text)
        return text.replace("▁", " ").encode()


def _byte_level() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def _lists(flat: np.ndarray, lengths: np.ndarray, kind: pa.DataType) -> pa.ListArray:
    """Values of all rows one after the other, to one list per row."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = pa.array(list(flat), kind) if pa.types.is_list(kind) else pa.array(flat).cast(kind)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _updates(
    notes: list[tuple[int, int, list[int], dict[str, Tensor]]],
    fields: dict[str, pa.DataType],
    lengths: np.ndarray,
) -> pa.ListArray:
    """For each row the updates it took part in, in time order."""
    fields = {
        name: kind for name, kind in fields.items() if all(name in terms for *_, terms in notes)
    }
    of_row: list[list[tuple[int, int, dict[str, np.ndarray], int]]] = [[] for _ in lengths]
    for epoch, minibatch, rows, terms in notes:
        arrays = {name: terms[name].cpu().numpy() for name in fields}
        for place, row in enumerate(rows):
            of_row[row].append((epoch, minibatch, arrays, place))
    for entries in of_row:
        entries.sort(key=lambda entry: entry[:2])  # they may come from several processes
    flat = [(*entry, lengths[row]) for row, entries in enumerate(of_row) for entry in entries]
    sizes = np.array([length for *_, length in flat], dtype=np.int64)
    children = [
        pa.array([epoch for epoch, *_ in flat], pa.int16()),
        pa.array([minibatch for _, minibatch, *_ in flat], pa.int16()),
    ]
    for name, kind in fields.items():
        values = [arrays[name][place, :length] for _, _, arrays, place, length in flat]
        empty = np.zeros(0, dtype=bool if pa.types.is_boolean(kind.value_type) else np.float32)
        children.append(_lists(np.concatenate(values) if values else empty, sizes, kind.value_type))
    structs = pa.StructArray.from_arrays(children, names=["epoch", "minibatch", *fields])
    offsets = np.concatenate([[0], np.cumsum([len(entries) for entries in of_row])]).astype(
        np.int32
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
