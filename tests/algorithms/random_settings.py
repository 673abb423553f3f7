"""Random values for the settings of any definition, read from its typed model."""

from __future__ import annotations

import typing
from typing import Any, Literal

from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo


def settings_of(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Every setting of the model with some value of its type, inside its bounds."""
    return st.fixed_dictionaries({name: _values(info) for name, info in model.model_fields.items()})


def _values(info: FieldInfo) -> st.SearchStrategy[Any]:
    if typing.get_origin(info.annotation) is Literal:
        return st.sampled_from(typing.get_args(info.annotation))
    kinds = typing.get_args(info.annotation) or (info.annotation,)
    return st.one_of([_of_kind(kind, info) for kind in kinds])


def _of_kind(kind: Any, info: FieldInfo) -> st.SearchStrategy[Any]:
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    low = max(_bound(info, "ge", -3), _bound(info, "gt", -3))
    high = min(_bound(info, "le", low + 3), _bound(info, "lt", low + 3))
    if kind is int:
        return st.integers(int(low), max(int(high), int(low) + 5))
    if kind is float:
        inner = 0.01 * (high - low)  # keeps off bounds that are excluded
        return st.floats(low + inner, high - inner).map(lambda x: round(x, 3))
    raise TypeError(f"no random value for a setting of type {kind}: add one here")


def _bound(info: FieldInfo, name: str, otherwise: float) -> float:
    found = [getattr(one, name) for one in info.metadata if hasattr(one, name)]
    return max(float(found[0]), -3.0) if found else otherwise
