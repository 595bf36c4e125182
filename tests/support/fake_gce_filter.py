"""Compute Engine's filters: the two kinds that its reference documents, and a refusal of anything else.

The sources are the reference of `filter` in any list request of google-cloud-compute (it is printed by
`help(google.cloud.compute_v1.AggregatedListInstancesRequest)`) and the grammar of AIP-160
(https://google.aip.dev/160): `OR` binds tighter than `AND`, and expressions side by side are joined by `AND`.
What neither of them promises is refused: several expressions without parentheses, a field that the listed
things lack, a wildcard in a value, a regular expression beside an expression of AIP-160, regular expressions
over several fields.
"""

from __future__ import annotations

import datetime
import itertools
import operator as operators
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Thing = dict[str, Any]
"""A listed resource as JSON."""
Test = Callable[[Thing], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<open>\()|(?P<close>\))|(?P<operator><=|>=|!=|<|>|=|:)
    |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<text>[^\s()<>=!:"']+))""",
    re.VERBOSE,
)
_REGEX = re.compile(
    r"""\s*(?P<field>[\w.\-]+)\s+(?P<operator>eq|ne)\s+(?P<literal>"[^"]*"|'[^']*'|\S.*?)\s*"""
)
_NOT_RE2 = re.compile(r"\(\?(=|!|<=|<!|>|P=)|\\[1-9]")
"""What Python's regular expressions have and RE2's lack."""
_OPERATORS = {
    "=": operators.eq, "!=": operators.ne, "<": operators.lt, ">": operators.gt,
    "<=": operators.le, ">=": operators.ge,
}  # fmt: skip
_NUMBERS = ("TYPE_INT32", "TYPE_INT64", "TYPE_UINT32", "TYPE_UINT64", "TYPE_FLOAT", "TYPE_DOUBLE")


class BadFilterError(Exception):
    """The text is no filter."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


INDEXED = {"Operation": {"user", "creationTimestamp"}}
"""Kinds of resources whose lists may be filtered only by indexed fields, because a project has so many.

https://cloud.google.com/compute/api-quota: a list that leaves out more than 10,000 things is charged for each
10,000 (filtered_list_cost_overhead, 75 a minute), and refused after that. cluster-toolkit's pull request 4091
says which of an operation's fields are indexed, and that a list filtered by these is charged nothing.
"""


def fields(expression: str) -> set[str]:
    """Return the fields that a valid filter uses."""
    if _is_regular(expression):
        return {read[2] for read in re.finditer(r"(^|[(\s])([\w.\-]+)\s+(?:eq|ne)\s", expression)}
    tokens = list(_tokens(expression))
    return {one.text for one, then in itertools.pairwise(tokens) if then.kind == "operator"}


def parse(expression: str, kind: Any) -> Test:
    """Return a predicate for a filter.

    Args:
        kind: The descriptor of the listed things' message.

    Raises:
        BadFilterError: The filter is invalid, or the listed things lack a field.
    """
    if not expression.strip():
        return lambda thing: True
    if _is_regular(expression):
        return _regular(expression, kind)
    return _Reader(expression, kind).whole()


# --- regular expressions ----------------------------------------------------------------------------------


def _is_regular(expression: str) -> bool:
    return re.search(r"(^|[(\s])[\w.\-]+\s+(eq|ne)\s", expression) is not None


def _regular(expression: str, kind: Any) -> Test:
    """Parse one expression without parentheses, or several with them, on one field."""
    parts = [expression]
    if expression.lstrip().startswith("("):
        parts = [part[1:-1] for part in re.findall(r"\((?:[^()]|\([^()]*\))*\)", expression)]
        if re.sub(r"[()\s]", "", expression) != re.sub(r"[()\s]", "", "".join(parts)):
            raise BadFilterError("a regular expression cannot be combined with anything else")
    tests, fields = [], set()
    for part in parts:
        read = _REGEX.fullmatch(part)
        if read is None:
            raise BadFilterError(f"{part!r} is no regular expression of a field")
        literal = read["literal"].strip("\"'")
        if _NOT_RE2.search(literal):
            raise BadFilterError(f"RE2 does not know all of {literal!r}")
        try:
            pattern = re.compile(literal)
        except re.error as error:
            raise BadFilterError(f"{literal!r}: {error}") from error
        path = _path(read["field"], kind)
        fields.add(read["field"])
        tests.append(_fits(path, pattern, read["operator"] == "eq"))
    if len(fields) > 1:
        raise BadFilterError("regular expressions of several fields cannot be combined")
    return lambda thing: all(test(thing) for test in tests)


def _fits(path: Sequence[str], pattern: re.Pattern[str], wanted: bool) -> Test:
    return lambda thing: (
        any(pattern.fullmatch(_spelled(value)) for value in _values(thing, path) or [""]) is wanted
    )


# --- AIP-160 -----------------------------------------------------------------------------------------------


class _Reader:
    """Recursive descent over AIP-160's grammar, with Compute Engine's own limits."""

    def __init__(self, expression: str, kind: Any) -> None:
        self._kind = kind
        self._tokens = list(_tokens(expression))
        self._at = 0
        self._bare: list[bool] = []
        """Of the expressions beside each other: whether one stands without parentheses."""

    def whole(self) -> Test:
        test = self._expression()
        if self._next() is not None:
            raise BadFilterError(f"nothing can follow before {self._tokens[self._at].text!r}")
        return test

    def _next(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is_word(self, word: str) -> bool:
        token = self._next()
        return token is not None and token.kind == "text" and token.text == word

    def _take(self, kind: str) -> str:
        token = self._next()
        if token is None or token.kind != kind:
            raise BadFilterError(
                f"{kind} is missing" + (f" before {token.text!r}" if token else " at the end")
            )
        self._at += 1
        return token.text

    def _ends(self) -> bool:
        token = self._next()
        return token is None or token.kind == "close"

    def _expression(self) -> Test:
        """`sequence {AND sequence}`; a sequence's factors are joined by AND as well."""
        outside, self._bare = self._bare, []
        factors = [self._factor()]
        while not self._ends():
            if self._is_word("AND"):
                self._at += 1
            factors.append(self._factor())
        if any(self._bare) and len(self._bare) > 1:
            raise BadFilterError("each of several expressions stands within parentheses")
        self._bare = outside
        return _all(factors)

    def _factor(self) -> Test:
        terms = [self._term()]
        while self._is_word("OR"):
            self._at += 1
            terms.append(self._term())
        return _any(terms)

    def _term(self) -> Test:
        negated = self._is_word("NOT")
        self._at += negated
        token = self._next()
        self._bare.append(token is None or token.kind != "open")
        if self._bare[-1]:
            test = self._restriction()
        else:
            self._at += 1
            test = self._expression()
            self._take("close")
        return (lambda thing: not test(thing)) if negated else test

    def _restriction(self) -> Test:
        field = self._take("text")
        operator = self._take("operator")
        token = self._next()
        if token is None or token.kind not in ("text", "quoted"):
            raise BadFilterError(f"a value is missing after {field}{operator}")
        self._at += 1
        value = token.text[1:-1] if token.kind == "quoted" else token.text
        if "*" in value and token.kind == "text" and (operator, value) != (":", "*"):
            raise BadFilterError(f"{value!r}: a star stands alone, after a colon")
        path = _path(field, self._kind)
        if (operator, value) == (":", "*"):
            return lambda thing: bool(_values(thing, path))
        return _compared(path, operator, _typed(path, value, self._kind))


def _tokens(expression: str) -> Iterator[_Token]:
    at, end = 0, len(expression.rstrip())
    while at < end:
        read = _TOKEN.match(expression, at)
        if read is None or read.lastgroup is None:
            raise BadFilterError(f"{expression[at:]!r} cannot be read")
        yield _Token(read.lastgroup, read[read.lastgroup])
        at = read.end()


def _all(tests: Sequence[Test]) -> Test:
    return lambda thing: all(test(thing) for test in tests)


def _any(tests: Sequence[Test]) -> Test:
    return lambda thing: any(test(thing) for test in tests)


def _compared(path: Sequence[str], operator: str, wanted: str | float | bool) -> Test:
    if path[-1].endswith("Timestamp") and operator != ":":
        moment = datetime.datetime.fromisoformat(str(wanted))
        return lambda thing: any(
            bool(_OPERATORS[operator](datetime.datetime.fromisoformat(value), moment))
            for value in _values(thing, path)
        )

    def fits(value: Any) -> bool:
        if isinstance(wanted, float):
            value = float(value)
        if operator == ":":
            return wanted in value if isinstance(wanted, str) and isinstance(value, str) else value == wanted
        return bool(_OPERATORS[operator](value, wanted))

    if operator == "!=":
        return lambda thing: all(fits(value) for value in _values(thing, path))
    return lambda thing: any(fits(value) for value in _values(thing, path))


# --- fields ------------------------------------------------------------------------------------------------


def _path(field: str, kind: Any) -> tuple[str, ...]:
    """Return a field's names, one in another.

    Raises:
        BadFilterError: The listed things lack the field.
    """
    found: list[str] = []
    message = kind
    parts = field.split(".")
    while parts:
        part = parts.pop(0)
        known = None if message is None else {f.json_name: f for f in message.fields}.get(part)
        if known is None:
            raise BadFilterError(f"{kind.name} has no field {field}")
        found.append(part)
        message = known.message_type
        if message is not None and message.GetOptions().map_entry:
            # A label's key may have dots of its own.
            return (*found, ".".join(parts)) if parts else tuple(found)
    return tuple(found)


def _typed(path: Sequence[str], value: str, kind: Any) -> str | float | bool:
    """Return a filter's value in the field's type.

    Raises:
        BadFilterError: The value is not of that type.
    """
    message, field = kind, None
    for part in path:
        field = {f.json_name: f for f in message.fields}[part]
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            return value
    assert field is not None
    if field.type == field.TYPE_BOOL:
        if value not in ("true", "false"):
            raise BadFilterError(f"{'.'.join(path)} is true or false")
        return value == "true"
    if field.type in {getattr(field, name) for name in _NUMBERS}:
        try:
            return float(value)
        except ValueError as error:
            raise BadFilterError(f"{'.'.join(path)} is a number") from error
    return value


def _values(thing: Any, path: Sequence[str]) -> list[Any]:
    """Return a thing's values at a path, including those of each element of a list on the way."""
    if isinstance(thing, list):
        return [value for one in thing for value in _values(one, path)]
    if not path:
        return [thing]
    return _values(thing[path[0]], path[1:]) if isinstance(thing, dict) and path[0] in thing else []


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
