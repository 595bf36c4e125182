"""The providers' rules of what replaces a resource, and what a resource holds that would be lost with it.

They are read from `tests/infra/data/replacing_properties.yaml`, which names their sources.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parents[1] / "infra" / "data" / "replacing_properties.yaml"
FACTS: dict[str, Any] = yaml.safe_load(FILE.read_text())
HOLDS: dict[str, str] = FACTS["holds"]
REPLACED_BY: dict[str, dict[str, list[str]]] = FACTS["replaced_by"]
EMPTY = {
    f"{cloud}:{name}" for cloud, names in FACTS["holds_nothing"].items() for name in names
}  # fmt: skip
"""The types that hold no data, without the last part of the token."""


def undecided(types: Iterable[str]) -> set[str]:
    """Return the types of the clouds' resources of which nobody has said whether they hold data."""
    clouds = {one for one in types if one.partition(":")[0] in FACTS["holds_nothing"]}
    return {one for one in clouds if one not in HOLDS and one.rpartition(":")[0] not in EMPTY}


def forcing(kind: str) -> set[str]:
    """Return the properties of a type whose change replaces a resource, under whatever condition."""
    return {name for names in REPLACED_BY.get(kind, {}).values() for name in names}


def fixed(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Return the properties that cannot get from their old value to their new one, if the two differ."""
    return {
        name
        for condition, names in REPLACED_BY.get(kind, {}).items()
        for name in names
        if _applies(condition, name, old, new)
    }


def differs(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a property has another value."""
    return list(at(old, name)) != list(at(new, name))


def at(value: Any, path: str) -> Iterator[Any]:
    """Yield the values at a dotted path, of each element where a list lies on the way."""
    step, _, rest = path.partition(".")
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, Mapping) and one.get(step) is not None:
            yield from at(one[step], rest) if rest else [one[step]]


def _applies(condition: str, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    (was,), (will,) = ([*at(inputs, name), None][:1] for inputs in (old, new))
    if condition == "of_scratch_1":
        return bool(old.get("deploymentType") == "SCRATCH_1")
    if condition == "smaller":
        if isinstance(was, str) and isinstance(will, str):
            return not ipaddress.IPv4Network(was).subnet_of(ipaddress.IPv4Network(will))
        return isinstance(was, int) and isinstance(will, int) and will < was
    return True
