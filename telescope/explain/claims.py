"""Small expressions over a sample's facts: when a sentence applies, and what it claims.

    when = "0 < lam < 1 and not cut"
    claim = "A == G - V"

Names are facts (telescope.explain.facts). Two numbers are equal if they differ by less than 1e-9,
relative to the larger one. Nothing but comparisons, arithmetic and the functions below is allowed:
the texts are data, and data is never executed.
"""

from __future__ import annotations

import ast
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CLOSE = 1e-9
"""Relative difference below which two numbers count as equal."""

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "len": len,
    "max": max,
    "min": min,
    "round": round,
    "sum": sum,
}


def equal(x: Any, y: Any) -> bool:
    """Whether two facts are the same; lists are compared number by number."""
    if isinstance(x, str) or isinstance(y, str):
        return bool(x == y)
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return len(x) == len(y) and all(map(equal, x, y))
    return bool(abs(x - y) <= CLOSE * max(1.0, abs(x), abs(y)))


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: equal,
    ast.NotEq: lambda x, y: not equal(x, y),
    ast.Lt: lambda x, y: x < y and not equal(x, y),
    ast.LtE: lambda x, y: x < y or equal(x, y),
    ast.Gt: lambda x, y: x > y and not equal(x, y),
    ast.GtE: lambda x, y: x > y or equal(x, y),
    ast.In: lambda x, y: x in y,
}


Evaluator = Callable[[Mapping[str, Any]], Any]


def evaluate(expression: str, facts: Mapping[str, Any]) -> Any:
    """The expression's value. Raises KeyError for a fact that the sample does not have."""
    return _compiled(expression)(facts)


@functools.cache
def names_in(expression: str) -> frozenset[str]:
    """The facts that the expression names."""
    nodes = ast.walk(ast.parse(expression, mode="eval"))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


@functools.cache
def _compiled(expression: str) -> Evaluator:
    """The expression as a function of the facts: texts are evaluated many times."""
    return _evaluator(ast.parse(expression, mode="eval").body)


def _evaluator(node: ast.expr) -> Evaluator:
    match node:
        case ast.Constant(value=value):
            return lambda facts: value
        case ast.Name(id=name):
            return operator.itemgetter(name)
        case ast.Tuple(elts=parts):
            each = _evaluators(parts)
            return lambda facts: tuple(part(facts) for part in each)
        case ast.BoolOp(op=op, values=values):
            each = _evaluators(values)
            combine = all if isinstance(op, ast.And) else any
            return lambda facts: combine(part(facts) for part in each)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _evaluator(operand)
            return lambda facts: not inner(facts)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _evaluator(operand)
            return lambda facts: -inner(facts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            first, second = _evaluators([left, right])
            apply = _ARITHMETIC[type(op)]
            return lambda facts: apply(first(facts), second(facts))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison([left, *others], ops)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            each = _evaluators(args)
            function = _FUNCTIONS[name]
            return lambda facts: function(*[part(facts) for part in each])
    raise ValueError(f"not allowed in a claim: {ast.unparse(node)}")


def _evaluators(nodes: Sequence[ast.expr]) -> list[Evaluator]:
    return [_evaluator(node) for node in nodes]


def _comparison(terms: Sequence[ast.expr], ops: Sequence[ast.cmpop]) -> Evaluator:
    """a < b <= c: every neighbouring pair must hold."""
    evaluators = _evaluators(terms)
    compare = [_COMPARISONS[type(op)] for op in ops]

    def holds(facts: Mapping[str, Any]) -> bool:
        values = [term(facts) for term in evaluators]
        pairs = itertools.pairwise(values)
        return all(test(x, y) for test, (x, y) in zip(compare, pairs, strict=True))

    return holds
