"""Which lines compute a quantity: ours, with file and line, and verl's names for the same thing.

    for code in code_of("delta", settings):
        print(code.file, code.line, code.function, code.verl)

Files are read as text, so that nothing here imports torch. verl is 0.9.1.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import telescope
from telescope.algorithms.definitions.base import Definition
from telescope.config import Section
from telescope.explain.settings import Settings
from telescope.explain.words import Lang, toml

_PACKAGE = Path(telescope.__file__).parent
CORE_ALGOS = "verl/trainer/ppo/core_algos.py"
OF_ESTIMATOR = ("advantage_sum", "advantage", "return")
OF_POLICY_LOSS = ("clip", "surrogate", "objective")
OF_VALUE_LOSS = ("value_loss",)
NAMES = (*toml("code.toml"), *OF_ESTIMATOR, *OF_POLICY_LOSS, *OF_VALUE_LOSS)
"""Everything that `code_of` knows."""


@dataclass(frozen=True)
class Code:
    """Where a quantity is computed."""

    function: str
    file: str
    """Of the installed package, as `telescope/algorithms/kl.py`; or a path of the user's own."""
    line: int
    lines: list[str]
    """The function's lines without its docstring."""
    verl: Sequence[str] = ()
    """verl's names for the same thing, each with its file."""
    zh: str = ""
    en: str = ""
    """What differs, or what is easily confused."""

    def note(self, lang: Lang) -> str:
        return self.zh if lang == "zh" else self.en

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


def code_of(term: str, settings: Settings) -> list[Code]:
    """Our functions for a term of a trace, a column or an idea of `NAMES`; empty if unknown."""
    if term in OF_ESTIMATOR:
        return _of_definition(settings.estimator_definition, settings.credit)
    if term in OF_POLICY_LOSS:
        return _of_definition(settings.policy_loss_definition)
    if term in OF_VALUE_LOSS:
        return _of_definition(settings.value_loss_definition, settings.critic)
    entry = toml("code.toml").get(term)
    if entry is None or (term == "whitened" and not settings.whiten):
        return []
    known = {key: value for key, value in entry.items() if key != "ours"}
    return [replace(_located(name), **known) for name in entry["ours"]]


def _of_definition(definition: Definition | None, section: Section | None = None) -> list[Code]:
    """The tensor function of an algorithm.

    With the section of its settings: the functions of ours that do its work with these settings.
    """
    if definition is None or not definition.tensor:
        return []  # a ledger from elsewhere may name code that is not here
    verl = [f"{definition.verl} ({CORE_ALGOS})"] if definition.verl else []
    return [replace(code, verl=verl) for code in _implementations(definition, section)]


def _implementations(definition: Definition, section: Section | None) -> list[Code]:
    if not isinstance(definition.tensor, str):
        return [_inspected(definition)]
    module, _, function = definition.tensor.partition(":")
    if not module.startswith("telescope."):
        # Nothing is imported to look at it.
        file = getattr(sys.modules.get(module), "__file__", None)
        return [] if file is None else [_from_file(Path(file), file, function)]
    own = f"{module.removeprefix('telescope.')}:{function}"
    called = [] if section is None else _called(own, section)
    return [_located(name) for name in called or [own]]


def _inspected(definition: Definition) -> Code:
    """A function that was handed over as an object."""
    function = definition.implementation()
    lines, line = inspect.getsourcelines(function)
    file = inspect.getsourcefile(function) or "?"
    return Code(function.__name__, file, line, [x.rstrip("\n") for x in lines])


def _located(name: str) -> Code:
    module, _, function = name.partition(":")
    path = _path_of(module)
    shown = str(Path("telescope", path.relative_to(_PACKAGE)))
    return _from_file(path, shown, function)


def _from_file(path: Path, shown: str, function: str) -> Code:
    node = _find(path, function)
    lines = _source(path)
    first = node.lineno
    kept = list(range(first, (node.end_lineno or first) + 1))
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        text, *rest = node.body
        if rest:
            kept = [n for n in kept if not text.lineno <= n <= (text.end_lineno or text.lineno)]
    indent = node.col_offset
    return Code(function, shown, first, [lines[n - 1][indent:] for n in kept])


def _called(own: str, section: Section) -> list[str]:
    """Functions of telescope.algorithms that a function calls with these settings.

    Each as `module:function`.
    """
    module, _, function = own.partition(":")
    path = _path_of(module)
    used = set(_names_in(_find(path, function), section))
    modules = {name: module for name in _functions_in(path)}
    for node in _tree(path).body:
        source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and source.startswith("telescope.algorithms."):
            where = source.removeprefix("telescope.")
            names = {alias.name for alias in node.names} & _functions_in(_path_of(where))
            modules |= dict.fromkeys(names, where)
    called = sorted(used & modules.keys())
    return [f"{modules[name]}:{name}" for name in called if not name.startswith("_")]


def _names_in(node: ast.AST, section: Section) -> Iterator[str]:
    """Names in a piece of code, without the branch that these settings do not take."""
    if isinstance(node, ast.Name):
        yield node.id
    skipped: list[ast.AST] = []
    if isinstance(node, ast.If | ast.IfExp):
        is_taken = _decided(node.test, section)
        body = node.body if isinstance(node.body, list) else [node.body]
        other = node.orelse if isinstance(node.orelse, list) else [node.orelse]
        if is_taken is not None:
            skipped = [*other] if is_taken else [*body]
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from _names_in(child, section)


def _decided(test: ast.expr, section: Section) -> bool | None:
    """What `s.setting is None`, or `is not None`, is with these settings; None for other tests."""
    match test:
        case ast.Compare(
            left=ast.Attribute(value=ast.Name(id="s"), attr=name),
            ops=[ast.Is() | ast.IsNot() as op],
            comparators=[ast.Constant(value=None)],
        ):
            is_none = getattr(section, name, None) is None
            return is_none if isinstance(op, ast.Is) else not is_none
    return None


def _functions_in(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    return {node.name for node in _tree(path).body if isinstance(node, ast.FunctionDef)}


def _path_of(module: str) -> Path:
    return _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


def _find(path: Path, function: str) -> ast.stmt:
    """The definition of a function, a method (`Class.method`), or a name that is assigned."""
    body = _tree(path).body
    for part in function.split("."):
        for node in body:
            name = getattr(node, "name", None)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
            if name == part:
                break
        else:
            raise LookupError(f"{path} has no {function}")
        body = getattr(node, "body", [])
    return node


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def _source(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()
