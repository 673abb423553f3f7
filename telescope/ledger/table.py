"""Makes a step's table and writes it as one file. Imports no torch.

The trainer's writer uses it, and so does the recorder of other trainers' steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from telescope.errors import TelescopeError
from telescope.ledger.schema import CHECKSUM, METADATA, SCHEMA, checksum_of

Array = np.ndarray[Any, np.dtype[Any]]


def arrow_table(columns: Mapping[str, Any], meta: Mapping[str, Any]) -> pa.Table:
    """The columns as a table, in the order of the schema.

    Some columns exist only with some estimators, some terms only with some losses.
    """
    arrays = {}
    for field in SCHEMA:
        if field.name in columns:
            column = columns[field.name]
            is_made = isinstance(column, pa.Array)
            arrays[field.name] = column if is_made else pa.array(column, field.type)
    table = pa.table(arrays)
    text = json.dumps(meta).encode()
    checksum = checksum_of(text, table.schema, table.num_rows)
    return table.replace_schema_metadata({METADATA: text, CHECKSUM: checksum})


def offsets(lengths: Sequence[int] | Array) -> pa.Array:
    """Where each list begins, and where the last one ends."""
    ends = np.cumsum(lengths)
    return pa.array(np.concatenate([[0], ends]).astype(np.int32), pa.int32())


def list_column(flat: Array, lengths: Array, kind: pa.DataType) -> pa.ListArray:
    """Values of all rows one after the other, to one list per row."""
    values = pa.array(list(flat), kind) if pa.types.is_list(kind) else pa.array(flat).cast(kind)
    return pa.ListArray.from_arrays(offsets(lengths), values)


def save_table(table: pa.Table, path: Path) -> None:
    """Writes the file under a temporary name first: it appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        temporary.unlink(missing_ok=True)  # it may be a link to elsewhere
        parquet.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TelescopeError(
            f"cannot write {path}: {error.strerror or error}; "
            "free some space, then continue with --resume"
        ) from error


class TokenBytes(dict[int, bytes]):
    """The bytes a token stands for, by id; one character may be split over several tokens."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.special = set(tokenizer.all_special_ids)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        is_byte_level = "ByteLevel" in str(getattr(backend, "decoder", ""))
        self.alphabet = _byte_level() if is_byte_level else {}

    def __missing__(self, token: int) -> bytes:
        text = self.tokenizer.convert_ids_to_tokens(token) or ""
        self[token] = self._of(token, text)
        return self[token]

    def _of(self, token: int, text: str) -> bytes:
        """The bytes of a token that the vocabulary writes as `text`."""
        if token in self.special:
            return text.encode()
        byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
        if byte:
            return bytes([int(byte[1], 16)])
        if self.alphabet and all(char in self.alphabet for char in text):
            return bytes(self.alphabet[char] for char in text)
        return text.replace("▁", " ").encode()


def _byte_level() -> dict[str, int]:
    """GPT-2's byte-level alphabet, from character to byte.

    A printable byte is written as itself, any other as a character from U+0100 on.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}
