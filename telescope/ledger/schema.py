"""What a ledger file holds: one row per response, with lists of one entry per token.

The columns are made from the column table of telescope.batch, so that the two cannot differ.
One row per token was tried too: docs/log.md has the figures.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from telescope.batch import COLUMNS

VERSION = 3
"""Version of the format. A reader takes files of its own version and older ones."""
METADATA = b"telescope"
"""Key of the file's metadata, a JSON object: version, run, step, settings, tokens."""
CHECKSUM = b"telescope.crc32"
"""Key of `checksum_of` that metadata; files of earlier versions lack it."""

_TYPES = {"int": pa.int32(), "float": pa.float32(), "bool": pa.bool_()}
_FLOATS = pa.list_(pa.float32())
_BOOLS = pa.list_(pa.bool_())

_OF_UPDATES = ("selected", "top_entropy", "prompt_share")
"""Columns that belong to one update and are recorded with it."""
PER_TOKEN = {
    name: _TYPES[column.dtype]
    for name, column in COLUMNS.items()
    if column.anchor in ("action", "state") and name not in _OF_UPDATES
}
"""Columns with one entry per token, and the type of an entry."""
PER_ROW = {
    name: _TYPES[column.dtype]
    for name, column in COLUMNS.items()
    if column.anchor == "row" and name not in _OF_UPDATES
}
"""Columns with one entry per response."""

ACTOR_UPDATE = {
    "old_log_probs": _FLOATS,
    "log_probs": _FLOATS,
    "weight": _FLOATS,
    "selected": _BOOLS,
    "top_entropy": _BOOLS,
    "ratio": _FLOATS,
    "clipped": _BOOLS,
    "dual_clipped": _BOOLS,
    "loss": _FLOATS,
}
CRITIC_UPDATE = {
    "values": _FLOATS,
    "clipped": _BOOLS,
    "loss": _FLOATS,
    "log_p": pa.list_(_FLOATS),
    "first_bin": pa.list_(pa.int32()),
}
UPDATES = {"actor_updates": ACTOR_UPDATE, "critic_updates": CRITIC_UPDATE}
"""Column -> what is recorded of each update that a response took part in, per token."""


def _updates_type(fields: dict[str, pa.DataType]) -> pa.DataType:
    """A list of updates, each a struct of these fields."""
    place = [("epoch", pa.int16()), ("minibatch", pa.int16())]
    return pa.list_(pa.struct([*place, *fields.items()]))


SCHEMA = pa.schema(
    [
        *PER_ROW.items(),
        ("prompt", pa.string()),
        ("prompt_index", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response", pa.string()),
        ("score", pa.float64()),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("data", pa.map_(pa.string(), pa.string())),
        ("token_bytes", pa.list_(pa.binary())),
        *((name, pa.list_(kind)) for name, kind in PER_TOKEN.items()),
        *((name, _updates_type(fields)) for name, fields in UPDATES.items()),
    ]
)


def checksum_of(described: bytes, schema: pa.Schema, rows: int) -> bytes:
    """CRC-32 of a file's metadata, names of columns and number of rows, as decimal digits.

    Parquet's own checksums cover the pages, which hold everything else.
    """
    names = ",".join(_names(schema))
    return str(zlib.crc32(described + f"|{names}|{rows}".encode())).encode()


def _names(fields: Iterable[pa.Field]) -> Iterator[str]:
    """Names of columns, and of the fields inside them."""
    for field in fields:
        yield field.name
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            yield from _names(kind.field(i) for i in range(kind.num_fields))
