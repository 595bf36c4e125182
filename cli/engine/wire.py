"""Values between the SDK and a resource monitor: protobuf structs in which secrets are marked.

The marks are those of Pulumi's wire protocol (sdk/go/common/resource/plugin/rpc.go): a secret is an object
with a signature key, and an unknown value is a well-known string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import json_format, struct_pb2

from cli.engine.project import REDACTED

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"
RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


def to_json(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Convert a struct to plain values. Whole numbers become int; nulls at the top level are left out."""
    values = _integers(json_format.MessageToDict(struct))
    return {k: v for k, v in values.items() if v is not None}


def to_struct(values: dict[str, Any]) -> struct_pb2.Struct:
    """Reverse `to_json`."""
    struct = struct_pb2.Struct()
    json_format.ParseDict(values, struct)
    return struct


def secret(value: Any) -> dict[str, Any]:
    """Mark a value as secret."""
    return {SIGNATURE: SECRET, "value": value}


def is_secret(value: Any) -> bool:
    return isinstance(value, dict) and value.get(SIGNATURE) == SECRET


def has_secret(value: Any) -> bool:
    return any(is_secret(part) for part in _parts(value))


def has_unknown(value: Any) -> bool:
    return any(part == UNKNOWN for part in _parts(value))


def plain(value: Any) -> Any:
    """Return the value without the marks of secrets."""
    return _map_secrets(value, lambda inner: inner)


def redacted(value: Any) -> Any:
    """Return the value with every secret replaced by `[secret]`."""
    return _map_secrets(value, lambda _inner: REDACTED)


def _parts(value: Any) -> Iterator[Any]:
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _parts(part)


def _map_secrets(value: Any, replace: Callable[[Any], Any]) -> Any:
    if is_secret(value):
        return replace(_map_secrets(value.get("value"), lambda inner: inner))
    if isinstance(value, dict):
        return {k: _map_secrets(v, replace) for k, v in value.items()}
    if isinstance(value, list):
        return [_map_secrets(v, replace) for v in value]
    return value


def _integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        # Sorted, because a protobuf map has no order and two runs must write the same file.
        return {k: _integers(v) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [_integers(v) for v in value]
    return value


def readable(value: Any) -> Any:
    """Return the value without the protocol's signatures: an asset as path or text, a resource as URN."""
    if isinstance(value, dict):
        if value.get(SIGNATURE) == RESOURCE:
            return value.get("urn")
        return {k: readable(v) for k, v in value.items() if k != SIGNATURE}
    if isinstance(value, list):
        return [readable(v) for v in value]
    return value
