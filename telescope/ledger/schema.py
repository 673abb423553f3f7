"""What a ledger file holds: made from the column table of telescope.batch, so that the two cannot differ.

One row per response, with a list per token. One row per token was tried: docs/log.md has the figures.
"""

from __future__ import annotations

import pyarrow as pa

from telescope.batch import COLUMNS

VERSION = 3  # a reader takes any file of its own version or older
METADATA = b"telescope"  # JSON: version, run, step, settings

_TYPES = {"int": pa.int32(), "float": pa.float32(), "bool": pa.bool_()}
_FLOATS, _BOOLS = pa.list_(pa.float32()), pa.list_(pa.bool_())

_OF_UPDATES = ("selected",)  # columns that live as long as an update, and are recorded with it
PER_TOKEN = {
    name: _TYPES[c.dtype]
    for name, c in COLUMNS.items()
    if c.anchor in ("action", "state") and name not in _OF_UPDATES
}
PER_ROW = {name: _TYPES[c.dtype] for name, c in COLUMNS.items() if c.anchor == "row"}

ACTOR_UPDATE = {
    "old_log_probs": _FLOATS,
    "log_probs": _FLOATS,
    "weight": _FLOATS,
    "selected": _BOOLS,
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


def _update(fields: dict[str, pa.DataType]) -> pa.DataType:
    return pa.list_(pa.struct([("epoch", pa.int16()), ("minibatch", pa.int16()), *fields.items()]))


SCHEMA = pa.schema(
    [
        *PER_ROW.items(),
        ("prompt", pa.string()),
        ("prompt_index", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response", pa.string()),
        ("score", pa.float64()),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("token_bytes", pa.list_(pa.binary())),
        *((name, pa.list_(kind)) for name, kind in PER_TOKEN.items()),
        *((name, _update(fields)) for name, fields in UPDATES.items()),
    ]
)
