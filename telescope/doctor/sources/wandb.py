"""Offline W&B files, run-ID.wandb: read without wandb.

The file is a LevelDB log: blocks of 32 KiB with chunks of a record, each with checksum, length and
kind. A record is a protobuf message; field 2 is a row of history, whose items have a key (1, or 2
for a nested one) and a value as JSON (16).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError

_HEADER = 7
"""Bytes before the first block: a mark, a magic number and a version."""
_BLOCK = 32768
_CHUNK_HEADER = 7
_HISTORY, _ITEM, _KEY, _NESTED_KEY, _VALUE = 2, 1, 1, 2, 16
_WHOLE, _FIRST, _LAST = 1, 2, 4


def is_mine(path: Path) -> bool:
    return path.suffix == ".wandb"


def find(folder: Path) -> Path | None:
    """The newest file, here or below."""
    found = [path for path in folder.rglob("*.wandb") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


def read(path: Path) -> list[dict[str, Any]]:
    """One row per step."""
    try:
        data = path.read_bytes()
        rows = [_row(value) for record in _records(data) for value in _history(record)]
    except (OSError, ValueError, IndexError) as error:
        raise TelescopeError(f"{path} is not a W&B file that can be read: {error}") from None
    return [row for row in rows if "step" in row]


def _records(data: bytes) -> Iterator[bytes]:
    """The records of the log; one that was cut by a crash is left out."""
    if data[:4] != b":W&B":
        raise ValueError("it does not begin with :W&B")
    place = _HEADER
    parts = b""
    while place + _CHUNK_HEADER <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _CHUNK_HEADER:
            place += left
            continue
        length = int.from_bytes(data[place + 4 : place + 6], "little")
        kind = data[place + 6]
        chunk = data[place + _CHUNK_HEADER : place + _CHUNK_HEADER + length]
        if len(chunk) < length or kind == 0:
            return
        place += _CHUNK_HEADER + length
        parts = chunk if kind in (_WHOLE, _FIRST) else parts + chunk
        if kind in (_WHOLE, _LAST):
            yield parts


def _history(record: bytes) -> list[bytes]:
    return [
        value
        for number, value in _fields(record)
        if number == _HISTORY and isinstance(value, bytes)
    ]


def _row(history: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for number, item in _fields(history):
        if number != _ITEM or not isinstance(item, bytes):
            continue
        keys: list[str] = []
        value: Any = None
        for field, content in _fields(item):
            if isinstance(content, bytes) and field in (_KEY, _NESTED_KEY):
                keys.append(content.decode())
            elif isinstance(content, bytes) and field == _VALUE:
                value = json.loads(content)
        name = "/".join(key for key in keys if key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            row[name] = value
    given = row.pop("train/global_step", None)
    step = row.pop("_step", None)
    chosen = step if given is None else given
    numbers = {name: value for name, value in row.items() if not name.startswith("_")}
    return {"step": chosen, **numbers} if chosen is not None else numbers


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a protobuf message."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield number, value
        elif kind == 2:
            length, place = _varint(message, place)
            yield number, message[place : place + length]
            place += length
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if not byte & 0x80:
            return value, place
        shift += 7
