"""What a column may not be: of the wrong type, or of another width than its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from telescope.batch.columns import COLUMNS, Column
from telescope.errors import TelescopeError

if TYPE_CHECKING:
    from torch import Tensor

_MASKS = ("attention_mask", "response_mask")
"""0 and 1 in any type: frameworks pass them as integers, bools or floats."""
_IDS = ("prompts", "input_ids", "responses")
_TYPES = {
    "float": ("a real number per entry", "float"),
    "int": ("an integer", "long"),
    "bool": ("true or false", "bool"),
}
"""Type of a column -> what it holds, and the tensor method that casts to it."""


def check_dtype(column: Column, value: Tensor) -> None:
    """Refuses int64 values, float token ids and the like. A mask may have any type."""
    if column.name in _MASKS:
        return
    if _type_of(value) == column.dtype:
        return
    holds, cast = _TYPES[column.dtype]
    if column.name in _IDS:
        holds = "token ids, so integers"
    raise TelescopeError(
        f"column `{column.name}` is {value.dtype}; it is {holds}: give {column.name}.{cast}()"
    )


def _type_of(value: Tensor) -> str:
    if value.is_floating_point():
        return "float"
    if value.is_complex():
        return "complex"
    return "bool" if str(value.dtype) == "torch.bool" else "int"


def check_widths(columns: Mapping[str, Tensor]) -> None:
    """Refuses columns of whole rows that are not [B, P+T].

    P is the width of `prompts` and T that of `response_mask`. Without prompts, all of them must be
    equally wide.
    """
    rows, response_width = columns["response_mask"].shape
    whole = [n for n in columns if COLUMNS[n].anchor == "sequence" and n != "prompts"]
    prompts = columns.get("prompts")
    if prompts is not None:
        _check_rows("prompts", prompts, rows)
        width = prompts.shape[1] + response_width
        why = f"prompts have {prompts.shape[1]} tokens and responses {response_width}"
    elif whole:
        width = columns[whole[0]].shape[-1]
        why = f"`{whole[0]}` has {width} tokens"
    for name in whole:
        _check_rows(name, columns[name], rows)
        if columns[name].shape[1] != width:
            raise TelescopeError(
                f"column `{name}` has shape {list(columns[name].shape)}; "
                f"{why}, so this batch needs {[rows, width]}"
            )


def _check_rows(name: str, value: Tensor, rows: int) -> None:
    if value.dim() != 2 or value.shape[0] != rows:
        raise TelescopeError(
            f"column `{name}` has shape {list(value.shape)}; the batch has {rows} rows, "
            f"so give [{rows}, tokens]"
        )
