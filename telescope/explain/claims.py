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
from collections.abc import Callable, Mapping
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


def evaluate(expression: str, facts: Mapping[str, Any]) -> Any:
    """The expression's value. Raises KeyError for a fact that the sample does not have."""
    return _value(_parsed(expression), facts)


@functools.cache
def names_in(expression: str) -> frozenset[str]:
    """The facts that the expression names."""
    nodes = ast.walk(_parsed(expression))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


@functools.cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _value(node: ast.expr, facts: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return facts[name]
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(each, facts) for each in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_value(each, facts) for each in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, facts)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, facts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_value(left, facts), _value(right, facts))
        case ast.Tuple(elts=parts):
            return tuple(_value(each, facts) for each in parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compare([left, *others], ops, facts)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[_value(each, facts) for each in args])
    raise ValueError(f"not allowed in a claim: {ast.unparse(node)}")


def _compare(terms: list[ast.expr], ops: list[ast.cmpop], facts: Mapping[str, Any]) -> bool:
    values = [_value(term, facts) for term in terms]
    pairs = itertools.pairwise(values)
    return all(_COMPARISONS[type(op)](x, y) for op, (x, y) in zip(ops, pairs, strict=True))
