"""Imports transformers' model code without what it takes in for others: the compiler, sliced tensors, flex attention, sklearn.

Those are half the modules of a start, and a run that neither compiles nor slices uses none. transformers takes single names out of
them, to call them or to compare types with them. While it is imported, each such name is stood in for (`Later`); the first use
imports the module. Nobody but transformers sees a stand-in, and a module that is there already is taken as it is.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

T = TypeVar("T")
HEAVY = {
    "PIL.Image",
    "accelerate",
    "accelerate.hooks",
    "accelerate.utils",
    "accelerate.utils.modeling",
    "httpx._main",  # a command, with all that it draws with
    "sklearn.metrics",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch.distributed._composable.fsdp",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor.placement_types",
    "torch.nn.attention.flex_attention",
    "transformers.distributed.expert_parallel",  # these three use sliced tensors while they are imported
    "transformers.distributed.sharding_utils",
    "transformers.distributed.tensor_parallel",
}
"""What transformers imports names from, and a run on one device does not use."""


class Later:
    """A function, class or number of a module, which is imported when that is used."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _real(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself asks
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __instancecheck__(self, value: object) -> bool:
        return self._module in sys.modules and isinstance(value, self._real())  # without the module, there is nothing of its class

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __or__(self, other: Any) -> Any:  # Tensor | BlockMask, in an annotation
        return Later | other

    __ror__ = __or__

    def __rfloordiv__(self, other: Any) -> Any:
        return other // self._real()

    def __rmul__(self, other: Any) -> Any:
        return other * self._real()


class _Names(ModuleType):
    """A module as `from module import name` sees it."""

    def __getattr__(self, name: str) -> Later:
        return Later(self.__name__, name)


class _Compiler(ModuleType, importlib.abc.MetaPathFinder):
    """torch._dynamo as decorators see it. What they mark, it tells the compiler when that is imported."""

    def __init__(self) -> None:
        super().__init__("torch._dynamo")
        self.marks: list[tuple[str, Callable[..., Any]]] = []

    def allow_in_graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.marks.append(("allow_in_graph", function))
        return function

    def assume_constant_result(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.marks.append(("assume_constant_result", function))
        return function

    def disable(self, function: Any = None, recursive: bool = True, **_: Any) -> Any:
        if function is None:
            return functools.partial(self.disable, recursive=recursive)

        real: list[Any] = []

        @functools.wraps(function)
        def disabled(*args: Any, **kwargs: Any) -> Any:
            if self.__name__ not in sys.modules:  # nobody compiles
                return function(*args, **kwargs)
            if not real:
                real.append(torch.compiler.disable(function, recursive))
            return real[0](*args, **kwargs)

        return disabled

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.__name__:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_mark(module: Any) -> None:
            load(module)
            for mark, function in self.marks:
                getattr(module, mark)(function)

        spec.loader.exec_module = load_and_mark
        return spec


_COMPILER = _Compiler()
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def put_off() -> Iterator[None]:
    """Within it transformers imports nothing HEAVY, and torch no compiler to mark functions for it."""
    plain, compiler = builtins.__import__, _COMPILER.__name__

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        importer = (globals or {}).get("__name__") or ""
        if fromlist and importer.partition(".")[0] in ("httpx", "transformers"):
            full = importlib.util.resolve_name("." * level + name, globals["__package__"]) if level else name
            if full in HEAVY and full not in sys.modules:
                return _Names(full)
        if name == compiler and compiler not in sys.modules and importer in ("torch._compile", "torch.compiler"):
            return torch
        return plain(name, globals, locals, fromlist, level)

    with _ONE_AT_A_TIME:
        if compiler not in sys.modules:
            torch._dynamo = _COMPILER
            if _COMPILER not in sys.meta_path:
                sys.meta_path.insert(0, _COMPILER)
        with _replaced(builtins, "__import__", importing):
            try:
                yield
            finally:
                if vars(torch).get("_dynamo") is _COMPILER:
                    del torch._dynamo


class _Distributions(dict[str, list[str]]):
    """importlib.metadata.packages_distributions() for transformers, which asks it for the names under which a few packages are installed:
    a package's own is the first that it tries. The file lists of all that is installed are read where that is no answer, and for
    flash_attn, which several distributions have."""

    read_all = staticmethod(metadata.packages_distributions)

    def get(self, package: str, default: Any = None) -> Any:
        if not self and importlib.util.find_spec(package) is not None:
            if not package.startswith("flash_attn"):
                with suppress(metadata.PackageNotFoundError):
                    return [metadata.distribution(package).name]
            self.update(self.read_all())
        return super().get(package, default)


def import_transformers() -> None:
    """All of transformers that every model needs."""
    with put_off():
        with _replaced(metadata, "packages_distributions", _Distributions):
            import transformers.utils.import_utils as lists
        import transformers.distributed.utils as distributed

        is_dtensor: Any = distributed.is_dtensor  # asked of every weight; imports the class to compare with
        define: Any = lists.define_import_structure  # reads all models' files, and reads them again if it is given a file of the folder
        setattr(distributed, "is_dtensor", lambda value: "torch.distributed.tensor" in sys.modules and is_dtensor(value))  # noqa: B010
        with _replaced(lists, "define_import_structure", lambda path, prefix=None: define(Path(path).parent, prefix)):
            import transformers.models
        import transformers.generation.utils
        import transformers.modeling_utils
        import transformers.models.auto.modeling_auto  # noqa: F401


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


def on_paper(build: Callable[[], T]) -> T:
    """What `build` makes of a model's files, of which the first step is the model without memory (on `meta`)."""
    try:
        with _Plain():
            return build()
    except RuntimeError:  # a model that computes with both kinds of tensors; or the files are wrong
        return build()


class _Plain(TorchFunctionMode):
    """Spares torch the mathematics that it would import to compute on `meta`: weights are not drawn at random there, and what is made
    of positions, as rotary frequencies are, is worked out in memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.arange and str(kwargs.get("device")) == "meta":
            kwargs = kwargs | {"device": "cpu"}
        elif getattr(function, "__module__", None) == "torch.nn.init":
            tensor = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if tensor.is_meta:
                return tensor
        return function(*args, **kwargs)
