"""The weights of a model in its safetensors files, read in parts.

A rank reads the rows that it keeps, so nobody holds a whole model. Files whose tensors are not the
model's own, name by name, are left to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.utils.hub import cached_file

from telescope.errors import TelescopeError
from telescope.models.parallel import local_part, own_rows
from telescope.models.quantize import sample_of, sampled

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")


class WeightFiles:
    """Tensors in open files, by the names that the model has for them."""

    def __init__(self, slices: Mapping[str, Any], path: str) -> None:
        self._slices = slices
        self.path = path

    def __contains__(self, name: str) -> bool:
        return name in self._slices

    @torch.no_grad()
    def fill(self, tensors: Sequence[Tensor], name: str) -> None:
        """Gives these tensors, which are sharded alike or not at all, the rows that are theirs."""
        rows = self._read(name, (own_rows(tensors[0]),))
        refuse_non_finite(rows, name, self.path)
        for tensor in tensors:
            local_part(tensor).copy_(rows)

    def sample(self, name: str, dtype: torch.dtype) -> Tensor:
        """What `sample_of` gives of the tensor in this type: read value by value."""
        shape = self._slices[name].get_shape()
        values = []
        for place in sampled(torch.Size(shape).numel()):
            index = np.unravel_index(place, shape)
            one = tuple(slice(int(at), int(at) + 1) for at in index)
            values.append(self._read(name, one).flatten())
        return sample_of(torch.cat(values).to(dtype))

    def _read(self, name: str, place: tuple[slice, ...]) -> Tensor:
        try:
            part: Tensor = self._slices[name][place]
        except (OSError, SafetensorError) as error:
            first = str(error).strip().splitlines()[0]
            raise TelescopeError(f"cannot load the model from {self.path}: {first}") from error
        return part


@contextmanager
def open_files(model: nn.Module) -> Iterator[WeightFiles | None]:
    """The files of the model that transformers would load, if they can be read in parts.

    None: they have other names or shapes than the model, or transformers would convert what they
    hold.
    """
    core = getattr(model, "backbone", model)
    with ExitStack() as opened:
        try:
            slices = _open_slices(core, opened)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            slices = {}  # transformers will say what is wrong with them
        yield _matched(model, slices) if slices else None


@contextmanager
def without_weights() -> Iterator[None]:
    """Modules made within have their parameters on the meta device, where they take no memory."""
    register = nn.Module.register_parameter

    def as_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = as_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def with_placeholders(model: nn.Module) -> None:
    """Gives parameters on the meta device a place on the CPU: one zero that stands for all.

    So adapters can be added beside them, which take device and type from them.
    """
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, given in list(module.named_parameters(recurse=False)):
            if given.is_meta and id(given) not in made:
                zero = torch.zeros((), dtype=given.dtype, device="cpu")
                made[id(given)] = nn.Parameter(zero.expand(given.shape), given.requires_grad)
            module._parameters[name] = made.get(id(given), given)


def refuse_non_finite(weight: Tensor, name: str, path: str) -> None:
    """Refuses weights that are not finite: every number made with them would be NaN."""
    # A sum takes one pass and no memory; only a large one can mislead.
    if not bool(weight.sum().isfinite()) and not bool(weight.isfinite().all()):
        raise TelescopeError(
            f"the model {path} has weights that are not finite (in {name}): "
            "its files are damaged, or its training diverged"
        )


def _open_slices(core: Any, opened: ExitStack) -> dict[str, Any]:
    """Every tensor of the model's files by its name there; nothing is read of them yet."""
    path = core.name_or_path
    if _is_converted(core) or _find(path, "adapter_config.json") is not None:
        return {}
    files = [_find(path, _WHOLE)]
    if files[0] is None:
        index = _find(path, _INDEX)
        if index is None:
            return {}
        placed = json.loads(Path(index).read_text("utf-8"))["weight_map"]
        files = [_find(path, name) for name in sorted(set(placed.values()))]
    slices = {}
    for file in files:
        handle = opened.enter_context(safe_open(file, framework="pt"))
        slices.update({key: handle.get_slice(key) for key in handle.keys()})  # noqa: SIM118
    return slices


def _find(path: str, name: str) -> str | None:
    """The file of a folder or of a model on the hub, which is downloaded if necessary."""
    try:
        found: str | None = cached_file(path, name)
    except OSError:
        return None
    return found


def _is_converted(core: Any) -> bool:
    """Whether transformers may load other values, or other names, than the files have."""
    config = core.config
    if not type(core).__module__.startswith("transformers."):
        return True  # the model's own code may load it in any way
    for name in ("quantization_config", "transformers_weights"):
        if getattr(config, name, None) is not None:
            return True
    return bool(get_model_conversion_mapping(core, add_legacy=False))


def _matched(model: nn.Module, slices: dict[str, Any]) -> WeightFiles | None:
    """The tensors by the model's names; None unless every one is there, in its shape."""
    core: Any = getattr(model, "backbone", model)
    parameters = dict(model.named_parameters())
    persistent = model.state_dict().keys()
    buffers = {name: value for name, value in model.named_buffers() if name in persistent}
    found = {}
    for name, tensor in (parameters | buffers).items():
        if _is_made_here(model, name):
            continue
        key = _key(name, core.base_model_prefix, slices)
        if key is None or not tensor.dim() or slices[key].get_shape() != list(tensor.shape):
            return None
        if not tensor.is_floating_point() or slices[key].get_dtype() not in _FLOATS:
            return None
        found[name] = slices[key]
    for name in persistent - parameters.keys() - buffers.keys():
        if _key(name, core.base_model_prefix, slices) is not None:
            return None  # a second tensor for tied weights: transformers compares the two
    return WeightFiles(found, core.name_or_path)


def _is_made_here(model: nn.Module, name: str) -> bool:
    """Whether no file has this weight: a value head's, or an adapter's."""
    is_head = hasattr(model, "backbone") and not name.startswith("backbone.")
    return is_head or ".lora_" in name


def _key(name: str, prefix: str, slices: Mapping[str, Any]) -> str | None:
    """The name in the files: backbones are stored with a prefix, or without one."""
    inner = name.removeprefix("backbone.").replace(".base_layer.", ".")
    for key in (inner, f"{prefix}.{inner}", inner.removeprefix(f"{prefix}.")):
        if key in slices:
            return key
    return None
