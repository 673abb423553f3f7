"""TRL's completions: completions/completions_N.parquet (`log_completions=True`).

Text, the rewards of each function, and one advantage per answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from telescope.errors import TelescopeError
from telescope.peers.readers.base import Kind, need

_OWN = ("step", "prompt", "completion", "advantage")


def _read(files: list[Path]) -> dict[str, Any]:
    table = pa.concat_tables([_table(file) for file in files], promote_options="default")
    rows = table.to_pylist()
    prompts = [_text(row["prompt"]) for row in rows]
    given: dict[str, Any] = {
        "prompts": prompts,
        "texts": [_text(row["completion"]) for row in rows],
        "group": _runs(prompts),
        "advantages": [row["advantage"] for row in rows],
    }
    rewards = [
        field.name
        for field in table.schema
        if field.name not in _OWN and pa.types.is_floating(field.type)
    ]
    known = [{name: row[name] for name in rewards if row[name] is not None} for row in rows]
    given["parts"] = known
    if len(rewards) == 1 and all(known):
        given["scores"] = [row[rewards[0]] for row in rows]
    return given


def _table(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        problem = str(error).splitlines()[0]
        raise TelescopeError(f"{path} cannot be read as parquet: {problem}") from None
    need(dict.fromkeys(table.column_names), _OWN, path)
    return table


def _text(value: Any) -> str:
    """A text, or the messages of a chat one after the other."""
    if isinstance(value, str):
        return value
    contents = [message.get("content") for message in value or []]
    return "\n".join(str(content) for content in contents if content is not None)


def _runs(prompts: list[str]) -> list[int]:
    """Answers to one prompt stand next to each other: they are a group."""
    groups: list[int] = []
    for row, prompt in enumerate(prompts):
        is_new = row == 0 or prompt != prompts[row - 1]
        groups.append((groups[-1] if groups else -1) + is_new)
    return groups


KIND = Kind(
    name="trl",
    version="1.16.0",
    pattern="**/completions_*.parquet",
    step=r"completions_(\d+)\.parquet$",
    read=_read,
    rules=(
        "token ids are not written: the text is cut into tokens again, perhaps at other places",
        "one advantage per answer is written; with several rewards their weights are not, and "
        "there is no score then. telescope.watch records all of it",
    ),
)
