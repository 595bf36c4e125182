"""From a stack file, or from Pulumi's configuration, to a `StackConfig`."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from infra.config import stack_file
from infra.config.checks import Place, check
from infra.config.cluster import BenchmarkConfig, ClusterConfig
from infra.config.mistakes import (
    ConfigError,
    Location,
    Mistake,
    from_pydantic,
    near,
    path_of,
    shown,
    unknown_key,
)
from infra.config.stack_file import NAMESPACE
from infra.machines import Catalog, catalog

CLUSTER = f"{NAMESPACE}:cluster"
BENCHMARK = f"{NAMESPACE}:benchmark"
PLACE_KEYS = ("aws:region", "gcp:project", "gcp:region", "gcp:zone")
# What the Pulumi CLI itself writes into a stack file.
FILE_KEYS = ("config", "environment", "secretsprovider", "encryptedkey", "encryptionsalt")

# Shape mistakes are taken out of a copy so that the rest can be checked as well. What is needed there gets a
# value that no check asks about, because its place is known to be wrong.
_STAND_INS: dict[str, Any] = {
    "name": "unnamed",
    "provider": "local",
    "machine": "",
    "max": 1,
    "type": "unknown",
}
_STAND_INS |= {"role": "all", "source": "/unknown", "instance_types": [""], "nodes": 1}
_ANYTHING: tuple[Any, ...] = ({}, 1, "unknown", [])
_ROUNDS = 16
_INDENT = "indent it, with `config:` on a line above"

M = TypeVar("M", bound=BaseModel)


class StackConfig(BaseModel):
    """A stack file that says nothing wrong."""

    model_config = ConfigDict(frozen=True)

    stack: str
    cluster: ClusterConfig
    benchmark: BenchmarkConfig | None
    """None: the file has no `slurm-stacks:benchmark`, so nothing is trained."""
    region: str | None
    zone: str | None
    """Google Cloud only."""
    project: str | None
    """Google Cloud only."""

    @property
    def provider(self) -> str:
        """local | aws | gcp"""
        return self.cluster.provider

    def catalog(self, facts: Catalog | None = None) -> Catalog:
        """The facts of machines with this stack's own over them."""
        return (facts or catalog()).with_overrides(self.cluster.machines, self.cluster.provider)


def parse(
    values: Mapping[str, Any], stack: str, *, subject: str | None = None, project: Path | None = None
) -> StackConfig:
    """Read the configuration of a stack.

    Args:
        values: key with namespace -> value, as under `config:` of a stack file; objects may be JSON text, as
            Pulumi hands them to a program.
        stack: the stack's short name; the cluster's name where the file gives none.
        subject: what the message calls the configuration.
        project: the project's folder, to see whether the hooks' scripts are there; None: not looked at.

    Raises:
        ConfigError: with every mistake.
    """
    mistakes: list[Mistake] = _unknown_keys(values)
    broken: set[Location] = set()
    cluster = None
    misspelt = CLUSTER not in values and any(m.advice == f"did you mean {CLUSTER}?" for m in mistakes)
    raw_cluster = None if misspelt else _section(values, CLUSTER, mistakes, broken)
    if raw_cluster is not None:
        named = "name" in raw_cluster
        raw_cluster.setdefault("name", stack)
        cluster = _validated(ClusterConfig, raw_cluster, (CLUSTER,), mistakes, broken)
        if not named:
            advice = "the stack's name stands in where the file gives none: write name: …"
            mistakes = [replace(m, advice=advice) if m.path == f"{CLUSTER}.name" else m for m in mistakes]
    benchmark = None
    if BENCHMARK in values:
        raw_benchmark = _section(values, BENCHMARK, mistakes, broken)
        if raw_benchmark is not None:
            benchmark = _validated(BenchmarkConfig, raw_benchmark, (BENCHMARK,), mistakes, broken)
    place = _place(values, mistakes, broken)
    if cluster is not None:
        mistakes += check(cluster, benchmark, place, catalog(), broken, stack, project)
    if mistakes or cluster is None:
        raise ConfigError(subject or f"the configuration of stack {stack}", mistakes)
    return StackConfig(
        stack=stack,
        cluster=cluster,
        benchmark=benchmark,
        region=place.region_of(cluster.provider),
        zone=place.zone if cluster.provider == "gcp" else None,
        project=place.project if cluster.provider == "gcp" else None,
    )


def load_file(path: Path | str, *, scripts: bool = False) -> StackConfig:
    """Read `Pulumi.<stack>.yaml`.

    Args:
        scripts: whether the hooks' scripts must be there: to deploy, not to look at what is up or to end it.

    Raises:
        ConfigError: the file is missing, is not YAML, is no stack file, or holds mistakes.
    """
    path = Path(path)
    name = path.name
    content, found = stack_file.read(path)
    needed = f"`config:` with `{CLUSTER}` in it. See Pulumi.local.yaml."
    if content is None:
        raise ConfigError(f"{name} is empty: it needs {needed}")
    if not isinstance(content, dict):
        raise ConfigError(f"{name} must be keys and values, beginning with `config:`, not {shown(content)}.")
    told = {mistake.path for mistake in found}
    found += [m for key in content if key not in FILE_KEYS and (m := _unknown_at_top(key)).path not in told]
    values = content.get("config")
    if not isinstance(values, dict):
        if not any(mistake.advice in ("did you mean config?", _INDENT) for mistake in found):
            given = shown(values) if "config" in content else "nothing: the key is missing"
            found.append(Mistake("config", given, "a section of keys and values", f"write {needed}"))
        raise ConfigError(name, found)
    told |= {mistake.path for mistake in found}
    try:
        project = path.parent if scripts else None
        config = parse(values, stack_file.stack_of(path), subject=name, project=project)
    except ConfigError as error:
        raise ConfigError(name, [*found, *(m for m in error.mistakes if m.path not in told)]) from None
    if found:
        raise ConfigError(name, found)
    return config


def _unknown_at_top(key: str) -> Mistake:
    if ":" in key:
        return Mistake(
            path_of((key,)), "a key at the top of the file", "its place is below `config:`", _INDENT
        )
    return unknown_key((key,), FILE_KEYS)


def _unknown_keys(values: Mapping[Any, Any]) -> list[Mistake]:
    """Keys that should be ours and are not. Other namespaces belong to other programs and pass."""
    ours = [CLUSTER, BENCHMARK]
    mistakes = []
    for key in map(str, values):
        namespace, _, name = key.partition(":")
        # An almost right namespace (slurm-stack:cluster) would otherwise pass as somebody else's.
        foreign = name and namespace != NAMESPACE and near(namespace, [NAMESPACE]) is None
        if key not in ours and not foreign:
            mistake = unknown_key((key,), [*ours, *PLACE_KEYS])
            # `cluster:` without its namespace is near to none of them.
            if meant := near(key, ["cluster", "benchmark"]):
                mistake = replace(mistake, advice=f"did you mean {NAMESPACE}:{meant}?")
            mistakes.append(mistake)
    return mistakes


def _section(
    values: Mapping[str, Any], key: str, mistakes: list[Mistake], broken: set[Location]
) -> dict[str, Any] | None:
    """A private copy of one of our objects, or a mistake."""
    value = values.get(key)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):  # The text itself is shown as the mistake.
            value = json.loads(value)
    if isinstance(value, Mapping):
        with contextlib.suppress(RecursionError):  # Deeper than any model: what it is shows in the message.
            return copy.deepcopy(dict(value))
    broken.add((key,))
    given = shown(value) if key in values else "nothing: the key is missing"
    mistakes.append(
        Mistake(key, given, "a section of keys and values", "see Pulumi.local.yaml for an example")
    )
    return None


def _place(values: Mapping[str, Any], mistakes: list[Mistake], broken: set[Location]) -> Place:
    """Where the clouds' own settings put the stack."""
    found: dict[str, str | None] = {}
    for key in PLACE_KEYS:
        value = values.get(key)
        if value is not None and not (isinstance(value, str) and value):
            mistakes.append(Mistake(key, shown(value), "text", "write it in quotes"))
            broken.add((key,))
            value = None
        found[key] = value
    return Place(
        aws_region=found["aws:region"],
        gcp_region=found["gcp:region"],
        zone=found["gcp:zone"],
        project=found["gcp:project"],
    )


def _validated(
    model: type[M], raw: dict[str, Any], top: Location, mistakes: list[Mistake], broken: set[Location]
) -> M | None:
    """The model; where shapes are wrong, the model of what is left, with the mistakes noted.

    None where nothing that makes sense is left.
    """
    for attempt in range(_ROUNDS):
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                location = tuple(detail["loc"])
                # What later rounds find is of our own making: a stand-in is missing, or does not fit.
                if attempt == 0:
                    mistakes.append(from_pydantic(detail, top, model))
                    broken.add(top + location)
                _take_out(raw, location, detail["type"], attempt)
    return None


def _take_out(raw: Any, location: Location, kind: str, attempt: int) -> None:
    """Remove a wrong value, so that its default holds, or put a stand-in where there must be one."""
    if not location:
        return
    owner = raw
    for part in location[:-1]:
        try:
            owner = owner[part]
        except (KeyError, IndexError, TypeError):
            return  # An earlier mistake of this round took it out.
    last = location[-1]
    if isinstance(owner, list):
        if isinstance(last, int) and last < len(owner) and kind in ("model_type", "model_attributes_type"):
            owner[last] = {}
        else:
            _take_out(raw, location[:-1], "", attempt)
    elif isinstance(owner, dict):
        owner.pop(last, None)
        if kind == "invalid_key":
            for key in [k for k in owner if str(k) == str(last)]:
                del owner[key]
        if kind == "missing" and isinstance(last, str):
            # A value that does not fit is taken out in one round and missed in the next.
            other = _ANYTHING[attempt // 2 % len(_ANYTHING)]
            owner[last] = copy.deepcopy(_STAND_INS.get(last, other))
