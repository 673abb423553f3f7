"""The responses of a file of numbers: which names and numbers belong to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.number_names import SETTING_NAMES


def rows_of(data: Any) -> list[dict[str, Any]]:
    """The names and numbers of each response, with their groups numbered from 0."""
    return _numbered(_responses(data))


def _numbered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their groups numbered, in the order in which they appear."""
    numbers: dict[str, int] = {}
    out = []
    for i, row in enumerate(rows):
        key = next((key for key in row if SETTING_NAMES.get(key.lower()) == "group"), None)
        if key is None and numbers:
            raise TelescopeError(f"response {i} has no group, the ones before it have")
        if key is None:
            out.append(row)
            continue
        if i and not numbers:
            raise TelescopeError(f"response {i} has a {key}, the ones before it have none")
        label = row[key]
        if not isinstance(label, str | int | float):
            raise TelescopeError(f"{key} = {label!r}: give one text or number for each response")
        out.append({**row, key: numbers.setdefault(str(label), len(numbers))})
    return out


def _responses(data: Any) -> list[dict[str, Any]]:
    """The names and numbers of each response, with those that all share."""
    if isinstance(data, list):
        data = {"responses": data}
    rows = data.get("responses", [data]) if isinstance(data, dict) else [data]
    if not isinstance(rows, list) or not rows:
        raise TelescopeError(
            'no response: give at least one, e.g. [{"values": [0.3, 0.4]}, {"values": [0.1]}]'
        )
    for row in rows:
        if not isinstance(row, dict):
            raise TelescopeError(
                f'a response is names and numbers, e.g. {{"values": [0.3, 0.4]}}, not {row!r}'
            )
    if "responses" in data:
        shared = {key: value for key, value in data.items() if key != "responses"}
        return [{**shared, **row} for row in rows]
    return _split(data)


def _split(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One response for each row of the lists of lists; a single one if there are none."""
    lists = {key: value for key, value in data.items() if isinstance(value, list)}
    if not any(isinstance(x, list) for value in lists.values() for x in value):
        return [data]
    first = next(iter(lists))
    count = len(lists[first])
    for key, value in lists.items():
        if len(value) != count:
            raise TelescopeError(
                f"{key} has {len(value)} rows and {first} has {count}: "
                "every list needs one per response"
            )
    return [
        {key: value[row] if key in lists else value for key, value in data.items()}
        for row in range(count)
    ]
