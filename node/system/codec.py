"""The design's dataclasses as JSON and back. Every mistake is named by its path.

A field that the reader does not know is an error, because the archive and the settings of a cluster are
published together (see `infra.bundle`). In a union of dataclasses each class has a field `provider` of a
Literal type, which says what an object is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")
TAG = "provider"
"""The field that says which class of a union an object is."""
MOST = 2**1023
"""The greatest whole number that is read where a number with a point is expected."""
LINE = 100
"""The most characters of a value in a message."""


def to_json(value: Any) -> Any:
    """Return a dataclass as plain JSON values; tuples become lists."""
    return dataclasses.asdict(value)


def from_json(cls: type[T], value: Any) -> T:
    """Return a dataclass from what `to_json` made.

    Raises:
        ValueError: A field is missing, unknown, or of another type; the message has its path.
    """
    return typing.cast(T, _read(cls, value, cls.__name__))


def _read(kind: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = typing.get_args(kind)
        if value is None and type(None) in kinds:
            return None
        kinds = tuple(a for a in kinds if a is not type(None))
        return _read(kinds[0] if len(kinds) == 1 else _tagged(kinds, value, path), value, path)
    if origin is typing.Literal:
        if value not in typing.get_args(kind):
            raise ValueError(f"{path}: {' or '.join(typing.get_args(kind))} is expected, not {shown(value)}")
        return value
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path}: a list is expected, not {shown(value)}")
        return tuple(_read(inner, item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{path}: an object is expected, not {shown(value)}")
        return {str(k): _read(typing.get_args(kind)[1], v, f"{path}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ValueError(f"{path}: an object is expected, not {shown(value)}")
        hints = _hints(kind)
        if unknown := sorted(value.keys() - hints.keys()):
            raise ValueError(f"{path}: unknown fields {', '.join(unknown)}")
        needed = (
            field.name
            for field in dataclasses.fields(kind)
            if field.default is field.default_factory is dataclasses.MISSING
        )
        if missing := [name for name in needed if name not in value]:
            raise ValueError(f"{path}: missing fields {', '.join(missing)}")
        try:
            return kind(**{k: _read(hints[k], v, f"{path}.{k}") for k, v in value.items()})
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from error
    if kind is float and isinstance(value, float | int) and not isinstance(value, bool):
        return _finite(value, path)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{path}: {kind.__name__} is expected, not {shown(value)}")
    return value


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields. A list may have hundreds of its objects."""
    return typing.get_type_hints(kind)


def _finite(value: float, path: str) -> float:
    # A whole number may have hundreds of digits.
    if (isinstance(value, float) and math.isfinite(value)) or (isinstance(value, int) and abs(value) <= MOST):
        return float(value)
    raise ValueError(f"{path}: {shown(value)} is no number that can be used")


def shown(value: object) -> str:
    """Return a value for a message, without control characters and not longer than a line."""
    text = repr(value)
    return text if len(text) <= LINE else f"{text[: LINE - 1]}…"


def _tagged(kinds: tuple[Any, ...], value: Any, path: str) -> Any:
    """Return the class of a union whose tag is the value's."""
    if not isinstance(value, dict):
        raise ValueError(f"{path}: an object is expected, not {shown(value)}")
    by_tag = {tag: kind for kind in kinds for tag in typing.get_args(typing.get_type_hints(kind)[TAG])}
    if value.get(TAG) not in by_tag:
        raise ValueError(f"{path}.{TAG}: {' or '.join(by_tag)} is expected, not {shown(value.get(TAG))}")
    return by_tag[value[TAG]]
