"""Readable placeholders for values that only a cloud can compute: `<name.property>`.

The SDK's getters say which properties exist. An offline plan needs the placeholders: with unknown values,
user data and policies would not be computed, so checks on them would see nothing; with no values at all,
programs would fail on `str + None`.
"""

from __future__ import annotations

import enum
import functools
import importlib
import re
import types
import typing
from collections import abc
from typing import Any

import pulumi

from cli.runner import wire

DEPTH = 5
"""The depth to which objects are filled: a few of the SDKs' types contain themselves."""
OWN = ("id", "urn")
"""Attributes that are no properties; the SDK resolves them itself."""
LABELS = {"tagsAll": "tags", "effectiveLabels": "labels", "pulumiLabels": "labels"}
"""Computed maps that repeat an input."""


def fill(cls: type | None, name: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a resource: its known values, and a placeholder for each other property.

    Args:
        cls: the resource's class; `None` if it is unknown.
        name: the resource's name, for the placeholders.
        known: its inputs by their Pulumi names.
    """
    outputs = _fill(cls, name, known, DEPTH) if cls is not None else dict(known)
    for computed, given in LABELS.items():
        if outputs.get(computed) == {} and given in known:
            outputs[computed] = known[given]
    return outputs


def fill_invoke(token: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a provider's function, such as `aws:ec2/getAmi:getAmi`, in the same way."""
    _, _, function = token.rpartition(":")
    result = _result_class(token)
    known = {k: v for k, v in arguments.items() if result is not None and k in _hints(result)}
    outputs = fill(result, function, known)
    if result is not None and "id" in _hints(result):
        outputs.setdefault("id", f"<{function}.id>")
    return outputs


def _result_class(token: str) -> type | None:
    """Return the class of a function's result, by the generators' convention.

    For example `pulumi_aws.ec2.get_ami.GetAmiResult` for `aws:ec2/getAmi:getAmi`.
    """
    try:
        package, module, function = token.split(":")
        folder, _, file = module.rpartition("/")
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", file or function).lower()
        path = ".".join(part for part in (f"pulumi_{package}", folder.replace("index", ""), snake) if part)
        found = getattr(importlib.import_module(path), function[0].upper() + function[1:] + "Result", None)
    except (ValueError, ImportError):
        return None
    return found if isinstance(found, type) else None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return Pulumi name -> type for the Pulumi properties of a class."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for member in vars(base).values():
            pulumi_name = getattr(getattr(member, "fget", None), "_pulumi_name", None)
            if isinstance(member, property) and isinstance(pulumi_name, str):
                try:
                    found[pulumi_name] = typing.get_type_hints(member.fget).get("return", Any)
                except (NameError, TypeError):
                    found[pulumi_name] = Any
    return found


def _fill(cls: type, path: str, known: dict[str, Any], depth: int) -> dict[str, Any]:
    values = dict(known)
    for name, hint in _hints(cls).items():
        if name in OWN and depth == DEPTH:
            continue
        if known.get(name) is None:
            invented = _invent(hint, f"{path}.{name}", depth - 1)
            if invented is not None:
                values[name] = invented
        else:
            values[name] = _complete(hint, f"{path}.{name}", known[name], depth - 1)
    return values


def _invent(hint: Any, path: str, depth: int) -> Any:
    """Return a placeholder for a value of this type; `None` leaves it out.

    Strings always get a placeholder, because addresses are often optional in the types: they may be given or
    computed. Other values get one only if the type is not optional.
    """
    kind, optional = _unwrap(hint)
    item = _element(kind)
    if kind in (str, Any):
        return f"<{path}>"
    if item is not None:
        if _unwrap(item)[0] is str or not optional:
            invented = _invent(item, f"{path}[0]", depth)
            return [] if invented is None else [invented]
        return None
    if optional or depth < 0:
        return None
    return _required(kind, path, depth)


def _required(kind: Any, path: str, depth: int) -> Any:
    if kind in (bool, int, float):
        return kind()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        # A text placeholder would not be a member of the enumeration.
        return next(iter(kind)).value
    if _is_object(kind):
        return _fill(kind, path, {}, depth)
    return {} if _is_mapping(kind) else None


def _complete(hint: Any, path: str, value: Any, depth: int) -> Any:
    """Fill in computed properties of a known value, such as the address of a given network interface."""
    kind, _ = _unwrap(hint)
    item = _element(kind)
    if wire.is_secret(value) or depth < 0:
        return value
    if isinstance(value, list) and item is not None:
        return [_complete(item, f"{path}[{i}]", part, depth) for i, part in enumerate(value)]
    if isinstance(value, dict) and _is_object(kind):
        return _fill(kind, path, value, depth)
    return value


def _unwrap(hint: Any) -> tuple[Any, bool]:
    """Return the type inside `Output[…]` and `Optional[…]`, and whether it was optional."""
    optional = False
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is pulumi.Output:
            (hint,) = arguments
        elif origin in (typing.Union, types.UnionType) and type(None) in arguments:
            optional = True
            rest = [argument for argument in arguments if argument is not type(None)]
            if len(rest) != 1:
                return None, optional
            (hint,) = rest
        else:
            return hint, optional


def _element(kind: Any) -> Any:
    """Return the type of a list's elements; `None` if the type is no list."""
    if typing.get_origin(kind) in (list, abc.Sequence):
        return typing.get_args(kind)[0]
    return None


def _is_mapping(kind: Any) -> bool:
    return kind is dict or typing.get_origin(kind) in (dict, abc.Mapping)


def _is_object(kind: Any) -> bool:
    return isinstance(kind, type) and not _is_mapping(kind) and bool(_hints(kind))
