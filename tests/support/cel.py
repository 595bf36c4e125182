"""Evaluates IAM conditions: it knows as much of their language (CEL) as the cluster's grants use.

Anything else in an expression is an error, so that no part of it is ignored.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

MOST_OPERATORS = 12
"""IAM's limit of logical operators in one expression."""

_TOKEN = re.compile(r"\s+|('(?:[^'\\]|\\.)*')|(&&|\|\||!=|==|!)|([A-Za-z_.]+)|([()])")
_WORDS = {"&&": " and ", "||": " or ", "!": " not "}


def holds(expression: str, kind: str, name: str) -> bool:
    """Return whether a condition holds for a resource.

    Args:
        kind: `compute.googleapis.com/Instance`.
        name: `projects/p/zones/z/instances/i`.
    """
    return bool(_value(ast.parse(_python(expression), mode="eval").body, kind, name))


def operators(expression: str) -> int:
    bare = re.sub(r"'(?:[^'\\]|\\.)*'", "", expression)
    return len(re.findall(r"&&|\|\||!(?!=)", bare))


def _python(expression: str) -> str:
    parts, place = [], 0
    while place < len(expression):
        found = _TOKEN.match(expression, place)
        assert found, f"not understood: {expression[place:]!r}"
        parts.append(_WORDS.get(found[0], found[0]))
        place = found.end()
    return "".join(parts).strip()


def _value(node: ast.expr, kind: str, name: str) -> str | bool:
    def of(part: ast.expr) -> str | bool:
        return _value(part, kind, name)

    match node:
        case ast.BoolOp(op=ast.And()):
            return all(of(part) for part in node.values)
        case ast.BoolOp(op=ast.Or()):
            return any(of(part) for part in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not of(node.operand)
        case ast.Compare(ops=[ast.Eq()]):
            return of(node.left) == of(node.comparators[0])
        case ast.Compare(ops=[ast.NotEq()]):
            return of(node.left) != of(node.comparators[0])
        case ast.Constant(value=str(text)):
            return text
        case ast.Attribute(value=ast.Name(id="resource"), attr=attribute):
            return {"type": kind, "name": name}[attribute]
        case ast.Call(func=ast.Attribute(value=whole, attr=method), args=[argument]):
            found: str | bool = _METHODS[method](str(of(whole)), str(of(argument)))
            return found
    raise AssertionError(f"not understood: {ast.unparse(node)}")


def _extract(text: str, template: str) -> str:
    before, _, rest = template.partition("{")
    after = rest.partition("}")[2]
    _, found, tail = text.partition(before)
    if not found or after not in tail:
        return ""
    return tail.partition(after)[0] if after else tail


_METHODS: dict[str, Callable[[str, str], str | bool]] = {"startsWith": str.startswith, "extract": _extract}
