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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import telescope
from telescope.algorithms.definitions.base import Definition
from telescope.config import Section
from telescope.explain.settings import Settings
from telescope.explain.words import Lang

_PACKAGE = Path(telescope.__file__).parent
CORE_ALGOS = "verl/trainer/ppo/core_algos.py"
_RAY_TRAINER = "verl/trainer/ppo/ray_trainer.py"
_TORCH_FUNCTIONAL = "verl/utils/torch_functional.py"
_LOSSES = "verl/workers/utils/losses.py"


@dataclass(frozen=True)
class Verl:
    """A name in verl."""

    name: str
    file: str

    def __str__(self) -> str:
        return f"{self.name} ({self.file})"


@dataclass(frozen=True)
class Code:
    """Where a quantity is computed."""

    function: str
    file: str
    """Of the installed package, as `telescope/algorithms/kl.py`; or a path of the user's own."""
    line: int
    lines: list[str]
    """The function's lines without its docstring."""
    verl: tuple[Verl, ...]
    zh: str = ""
    en: str = ""
    """What differs, or what is easily confused."""

    def note(self, lang: Lang) -> str:
        return self.zh if lang == "zh" else self.en

    @property
    def place(self) -> str:
        """File, line and function."""
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True)
class _Entry:
    """Our functions, as `module:function`, and verl's names for the same thing."""

    ours: tuple[str, ...]
    verl: tuple[Verl, ...] = ()
    zh: str = ""
    en: str = ""


_SHIFT = _Entry(
    ("models.forward:value_forward", "models.forward:policy_forward"),
    (
        Verl("values[:, -response_length - 1 : -1]", "verl/workers/critic/dp_critic.py"),
        Verl("logits[:, -response_length - 1 : -1]", "verl/workers/actor/dp_actor.py"),
    ),
    zh=(
        "切片 [:, -response_length-1:-1]：模型在一个位置的输出只看到这个位置及以前的 token，"
        "预测下一个。所以从最后一个提示 token 取起，去掉最后一个输出：第 i 个输出属于状态 s_i，"
        "没有看到 token i。用在 attention_mask 上就错一格：那里要用 [:, -response_length:]。"
    ),
    en=(
        "The slice [:, -response_length-1:-1]: the output at a position has seen the tokens up to "
        "that position and predicts the next one. So it starts at the last prompt token and "
        "leaves the last output out: output i belongs to state s_i and has not seen token i. On "
        "attention_mask the slice is one slot off: there it must be [:, -response_length:]."
    ),
)
_MASK = _Entry(
    ("rollout.sampler:sample_batch",),
    (
        Verl("response_mask, from compute_response_mask", _RAY_TRAINER),
        Verl("eos_mask (older name of the same argument)", CORE_ALGOS),
    ),
    zh="1 = 有效 token（策略写的）；0 = 填充或工具写的。旧代码里的 eos_mask 就是它，含 EOS 本身。",
    en=(
        "1 = a valid token, written by the policy; 0 = padding, or a tool's. eos_mask in older "
        "code is the same mask; it includes EOS itself."
    ),
)
_KL = _Entry(
    ("algorithms.kl:kl_penalty",),
    (Verl("kl_penalty", CORE_ALGOS), Verl("apply_kl_penalty", _RAY_TRAINER)),
)
_GAE_DELTA = Verl("delta, in compute_gae_advantage_return", CORE_ALGOS)
_RATIO = Verl("negative_approx_kl and ratio, in compute_policy_loss_vanilla", CORE_ALGOS)
_AGGREGATE = _Entry(
    ("algorithms.losses:aggregate",),
    (Verl("agg_loss", CORE_ALGOS),),
    zh="把逐 token 的损失变成一个数；分母取整个 mini-batch 的有效 token。",
    en="Turns token losses into one number; the denominator is of the whole minibatch.",
)

TERMS: dict[str, _Entry] = {
    "response_mask": _MASK,
    "shift": _SHIFT,
    "values": _Entry(
        ("models.forward:value_forward",),
        (Verl("compute_values", "verl/workers/engine_workers.py"),),
        zh="写 token i 之前的价值；切片见 shift。",
        en="The value before token i; for the slice see shift.",
    ),
    "old_log_probs": _Entry(
        ("models.forward:policy_forward",),
        (Verl("compute_log_prob", "verl/workers/engine_workers.py"),),
    ),
    "ref_log_prob": _Entry(
        ("models.forward:policy_forward",),
        (Verl("compute_ref_log_prob", "verl/workers/engine_workers.py"),),
    ),
    "kl": _KL,
    "reward": _Entry(
        ("credit:compute_advantages",),
        (Verl("token_level_rewards, in apply_kl_penalty", _RAY_TRAINER),),
    ),
    "delta": _Entry(
        ("algorithms.advantages:td_errors", "algorithms.advantages:_td_errors"), (_GAE_DELTA,)
    ),
    "whitened": _Entry(
        ("algorithms.masked:masked_whiten",),
        (Verl("masked_whiten", _TORCH_FUNCTIONAL),),
        zh="verl 在 compute_gae_advantage_return 里就白化，它的 advantages 是我们的 whitened。",
        en=("verl whitens inside compute_gae_advantage_return: its advantages are our whitened."),
    ),
    "ratio": _Entry(("algorithms.losses:ratios",), (_RATIO,)),
    "weight": _Entry(
        ("algorithms.mismatch:importance_weights", "algorithms.mismatch:kept_by_ratio"),
        (Verl("rollout correction", "verl/trainer/ppo/rollout_corr_helper.py"),),
    ),
    "kl_loss": _Entry(("algorithms.kl:kl_penalty",), (Verl("kl_penalty, in ppo_loss", _LOSSES),)),
    "aggregate": _AGGREGATE,
}
"""Term of a trace, column or idea -> where it is computed, whatever the algorithm."""
OF_ESTIMATOR = ("advantage_sum", "advantage", "return")
OF_POLICY_LOSS = ("clip", "surrogate", "objective")
OF_VALUE_LOSS = ("value_loss",)
NAMES = (*TERMS, *OF_ESTIMATOR, *OF_POLICY_LOSS, *OF_VALUE_LOSS)
"""Everything that `code_of` knows."""


def code_of(term: str, settings: Settings) -> list[Code]:
    """Our functions for a term of a trace, a column or an idea of `NAMES`; empty if unknown."""
    if term in OF_ESTIMATOR:
        return _of_definition(settings.estimator_definition, settings.credit)
    if term in OF_POLICY_LOSS:
        return _of_definition(settings.policy_loss_definition)
    if term in OF_VALUE_LOSS:
        return _of_definition(settings.value_loss_definition, settings.critic)
    entry = TERMS.get(term)
    if entry is None or (term == "whitened" and not settings.whiten):
        return []
    return [_located(name, entry.verl, entry.zh, entry.en) for name in entry.ours]


def _of_definition(definition: Definition | None, section: Section | None = None) -> list[Code]:
    """The tensor function of an algorithm.

    With the section of its settings: the functions of ours that do its work with these settings.
    """
    if definition is None or not definition.tensor:
        return []  # a ledger from elsewhere may name code that is not here
    verl = (Verl(definition.verl, CORE_ALGOS),) if definition.verl else ()
    if not isinstance(definition.tensor, str):
        return [_inspected(definition, verl)]
    module, _, function = definition.tensor.partition(":")
    if not module.startswith("telescope."):
        file = _file_of(module)
        return [] if file is None else [_from_file(file, str(file), function, verl)]
    own = f"{module.removeprefix('telescope.')}:{function}"
    called = [] if section is None else _called(own, section)
    return [_located(name, verl) for name in called or [own]]


def _inspected(definition: Definition, verl: tuple[Verl, ...]) -> Code:
    """A function that was handed over as an object."""
    function = definition.implementation()
    lines, line = inspect.getsourcelines(function)
    file = inspect.getsourcefile(function) or "?"
    return Code(function.__name__, file, line, [x.rstrip("\n") for x in lines], verl)


def _file_of(module: str) -> Path | None:
    """The file of a module that was imported already: nothing is imported to look at it."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None else Path(file)


def _located(name: str, verl: tuple[Verl, ...], zh: str = "", en: str = "") -> Code:
    module, _, function = name.partition(":")
    path = _path_of(module)
    shown = str(Path("telescope", path.relative_to(_PACKAGE)))
    return _from_file(path, shown, function, verl, zh, en)


def _from_file(
    path: Path, shown: str, function: str, verl: tuple[Verl, ...], zh: str = "", en: str = ""
) -> Code:
    node = _find(path, function)
    lines = _source(path)
    first = node.lineno
    kept = list(range(first, (node.end_lineno or first) + 1))
    text = _docstring(node)
    if text is not None:
        kept = [n for n in kept if not text.lineno <= n <= (text.end_lineno or text.lineno)]
    indent = node.col_offset
    return Code(function, shown, first, [lines[n - 1][indent:] for n in kept], verl, zh, en)


def _docstring(node: ast.stmt) -> ast.stmt | None:
    body = getattr(node, "body", [])
    if len(body) < 2 or not isinstance(body[0], ast.Expr):
        return None
    value = body[0].value
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return body[0] if is_text else None


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
    """The file of a module of ours."""
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
