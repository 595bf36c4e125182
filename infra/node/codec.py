"""The design's dataclasses as JSON and back, with every mistake named by its path.

A field that is unknown to the reader is an error, because the archive and the settings of a cluster are
published together (see `infra.bundle`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A dataclass as plain JSON values (tuples become lists)."""
    return dataclasses.asdict(value)


def from_json(cls: type[T], value: Any) -> T:
    """The inverse of `to_json`.

    Raises:
        ValueError: a field is missing, unknown, or of another shape; the message has its path.
    """
    return typing.cast(T, _read(cls, value, cls.__name__))


def _read(kind: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [a for a in typing.get_args(kind) if a is not type(None)]
        return _read(inner, value, path)
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path}: a list is expected, not {value!r}")
        return tuple(_read(inner, item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{path}: an object is expected, not {value!r}")
        return {str(k): _read(typing.get_args(kind)[1], v, f"{path}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ValueError(f"{path}: an object is expected, not {value!r}")
        hints = typing.get_type_hints(kind)
        if unknown := sorted(value.keys() - hints.keys()):
            raise ValueError(f"{path}: unknown fields {', '.join(unknown)}")
        try:
            return kind(**{k: _read(hints[k], v, f"{path}.{k}") for k, v in value.items()})
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from error
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{path}: {kind.__name__} is expected, not {value!r}")
    return value
