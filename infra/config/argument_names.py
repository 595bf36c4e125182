"""Names of arguments: `size_gib` in a stack file is `sizeGib` in the package's schema.

Only keys of sections are names. The keys of a map, such as the instance types of `instanceTypes`, are the
user's and stay as they are.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from infra.config.cluster import ClusterConfig
from infra.config.jobs import BenchmarkConfig
from infra.config.load import StackConfig
from infra.config.mistakes import plain_type


class Place(BaseModel):
    """Where on a cloud the cluster is. Without these the program's settings of the cloud's provider count.

    Attributes:
        region: `aws:region`, or `gcp:region`.
        zone: `gcp:zone`.
        project: `gcp:project`.
    """

    region: str | None = None
    zone: str | None = None
    project: str | None = None


BENCHMARK = "benchmark"
ARGUMENTS: dict[str, Any] = {
    **{key: field.annotation for key, field in ClusterConfig.model_fields.items()},
    **{key: field.annotation for key, field in Place.model_fields.items()},
    BENCHMARK: BenchmarkConfig,
}
"""Name in a stack file -> type of each argument."""


def camel_case(name: str) -> str:
    """Return the name in the package's schema."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def known(kind: Any) -> dict[str, Any] | None:
    """Return the keys of a type and their types; `None` for a type that has no keys of ours."""
    kind = plain_type(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {key: field.annotation for key, field in kind.model_fields.items()}
    return None


def inner(kind: Any) -> Any:
    """Return the type of the items of a list, or of the values of a map; `Any` for other types."""
    kind = plain_type(kind)
    return typing.get_args(kind)[-1] if typing.get_origin(kind) in (list, dict) else Any


def from_schema(value: Any, keys: Mapping[str, Any] = ARGUMENTS) -> Any:
    """Return a section with the names of a stack file. A key that is not known stays as it is."""
    names = {camel_case(key): key for key in keys}
    return {
        names.get(key, key): _value(part, keys.get(names.get(key, key), Any)) for key, part in value.items()
    }


def in_schema(value: Any, keys: Mapping[str, Any] = ARGUMENTS) -> Any:
    """Return a section of a stack file with the names of the schema."""
    return {camel_case(key): _named(part, keys.get(key, Any)) for key, part in value.items()}


def arguments(config: StackConfig) -> dict[str, Any]:
    """Return what a configuration gives as the arguments of a component; defaults are left out."""
    given = config.cluster.model_dump(mode="json", exclude_unset=True)
    given |= {key: value for key in Place.model_fields if (value := getattr(config, key)) is not None}
    if config.benchmark is not None:
        given[BENCHMARK] = config.benchmark.model_dump(mode="json", exclude_unset=True)
    arguments: dict[str, Any] = in_schema(given)
    return arguments


def path_in_schema(path: str) -> str:
    """Return a path below `slurm-stacks:cluster` or `slurm-stacks:benchmark` with the names of the schema."""
    top, dot, rest = path.partition(".")
    keys: Mapping[str, Any] | None = ARGUMENTS
    kind: Any = Any
    if top.endswith(f":{BENCHMARK}"):
        path = f"{BENCHMARK}{dot}{rest}"
    elif top.endswith(":cluster"):
        path = rest
    else:
        # A setting of the cloud's provider: `aws:region`.
        return camel_case(path.partition(":")[2]) if re.fullmatch(r"(aws|gcp):\w+", path) else path
    schema_path = ""
    for name, index in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", path):
        if index:
            schema_path += f"[{index}]"
            kind = inner(kind)
        else:
            shown = camel_case(name) if keys is not None and name in keys else name
            schema_path += f".{shown}" if schema_path else shown
            kind = keys.get(name, Any) if keys is not None else inner(kind)
        keys = known(kind)
    return schema_path


def _value(value: Any, kind: Any) -> Any:
    keys = known(kind)
    if isinstance(value, Mapping):
        if keys is not None:
            return from_schema(value, keys)
        return {key: _value(part, inner(kind)) for key, part in value.items()}
    if isinstance(value, list):
        return [_value(part, inner(kind)) for part in value]
    return value


def _named(value: Any, kind: Any) -> Any:
    keys = known(kind)
    if isinstance(value, Mapping):
        if keys is not None:
            return in_schema(value, keys)
        return {key: _named(part, inner(kind)) for key, part in value.items()}
    if isinstance(value, list):
        return [_named(part, inner(kind)) for part in value]
    return value
